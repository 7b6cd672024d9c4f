"""The private folder of a run, with its sockets and its description. A folder that is left behind is removed at the
next start of a run."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dragon.files import write_bytes
from dragon.infrastructure.errors import RunEndedError
from dragon.infrastructure.plain_number import in_units
from dragon.infrastructure.private import is_private, make_private, read_private

INFO = "run.json"
"""The file with the description of the run; see run_info.py."""
# A socket's path must fit in 108 bytes, and the run's folder and the socket's name follow the base.
_LONGEST_BASE = 50
_LONGEST_OF_SOCKETS = 75  # of a folder with a process's temporary folder and sockets of multiprocessing
_OF_SESSIONS = "/run/user/"
_SHARED_MEMORY = "/dev/shm"
_DATA = "data"  # the file with the end of the names of the run's folders of data, which no other user can know


class Owner(NamedTuple):
    """A process, by id and start time, so that a later process with the same id is not mistaken for it."""

    pid: int
    start_time: int


def process_start_time(pid: int) -> int | None:
    """Return the clock ticks after boot at which a process started; None if it has ended or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def this_process() -> Owner:
    """Return the calling process."""
    return Owner(os.getpid(), process_start_time(os.getpid()) or 0)


def started_at(owner: Owner) -> float:
    """Return when a process of this machine started, in seconds since 1970."""
    since_boot = owner.start_time / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


def is_alive(owner: Owner) -> bool:
    """Return whether exactly that process is alive. Raises OSError if that cannot be determined."""
    return process_start_time(owner.pid) == owner.start_time


def this_machine() -> str:
    """Return text that identifies this machine, or container, among all others."""
    from dragon.infrastructure.node_desc import boot_id  # imported late: few processes need it

    return boot_id() + os.readlink("/proc/self/ns/pid")


def _place() -> Path:
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    if own.startswith(_OF_SESSIONS):
        own = ""  # systemd removes it with the user's last login session, which a run may outlast
    for parent in (own, *_temporary(), "/tmp", _SHARED_MEMORY):
        if parent and len(parent) <= _LONGEST_BASE and os.access(parent, os.W_OK):
            return Path(parent) / f"dragon-{os.getuid()}"
    raise RunEndedError(
        f"a run needs a folder for its sockets, and neither /tmp nor {_SHARED_MEMORY} can be written; set TMPDIR to "
        f"one that can, with a path of at most {_LONGEST_BASE} characters"
    )


def _temporary() -> list[str]:
    """Return the folder of temporary files, if any: with a read-only root folder there may be none."""
    try:
        return [tempfile.gettempdir()]
    except FileNotFoundError:
        return []


def _checked(base: Path) -> Path:
    if not is_private(base):
        raise RunEndedError(
            f"{base} is not a private folder of yours; remove it, or set TMPDIR to a folder of your own"
        )
    return base


def make_folder() -> Path:
    """Make a new private folder, named after the calling process."""
    owner = this_process()
    while True:
        base = _place()
        base.mkdir(mode=0o700, exist_ok=True)
        folder = _checked(base) / f"{owner.pid}-{owner.start_time}-{_processes()}-{os.urandom(3).hex()}"
        try:
            folder.mkdir(mode=0o700)
        except FileNotFoundError:  # another process removed the empty base folder between the two steps
            continue
        write_bytes(folder / _DATA, os.urandom(6).hex().encode())
        return folder


def hold(folder: Path) -> int:
    """Lock a folder against systemd-tmpfiles, which removes old temporary files, until the descriptor is closed."""
    import fcntl  # only agents need it

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def make_data_folder(folder: Path, size: int) -> Path:
    """Make a new private folder for `size` bytes of a run's data: in memory if there is room, else on disk."""
    for place in _data_places(folder):
        if os.access(place.parent, os.W_OK) and shutil.disk_usage(place.parent).free > size and make_private(place):
            return Path(tempfile.mkdtemp(dir=place))
    rooms = (f"{at.parent} has {in_units(shutil.disk_usage(at.parent).free)} free" for at in _data_places(folder))
    raise MemoryError(
        f"a dictionary needs {in_units(size)}, and {', '.join(rooms)}; set TMPDIR to a folder of your own that has room"
    )


def make_temporary_folder(folder: Path) -> str | None:
    """Make a new private folder for a process's sockets and temporary files, which are removed with the run."""
    if not folder.exists():
        return None
    for place in (folder, *_data_places(folder)):
        if len(os.fsencode(place)) <= _LONGEST_OF_SOCKETS:
            try:
                if make_private(place):
                    return tempfile.mkdtemp(prefix="pymp-", dir=place)
            except OSError:
                continue
    return None


def _data_places(folder: Path) -> list[Path]:
    """Return the folders in which a run's data may be."""
    try:
        name = f"dragon-{os.getuid()}.{folder.name}.{(folder / _DATA).read_text()}"
    except OSError:
        name = f"dragon-{os.getuid()}.{folder.name}"
    return [Path(base) / name for base in dict.fromkeys((_SHARED_MEMORY, *_temporary()))]


def folders_of(folder: Path) -> list[Path]:
    """Return the folders in which a run's data may be, and last the run's own folder."""
    return [*_data_places(folder), folder]


def remove_folder(folder: Path) -> None:
    """Remove a run's folder and its data, and the base folder if that is empty then."""
    for place in folders_of(folder):
        shutil.rmtree(place, ignore_errors=True)
    try:
        folder.parent.rmdir()
    except OSError:
        return  # the base folder has other runs


def find_runs() -> list[Path]:
    """Return the folders of this user's runs on this machine, live or left behind."""
    try:
        return sorted(f for f in _checked(_place()).iterdir() if f.is_dir())
    except FileNotFoundError:
        return []


def all_runs() -> set[Path]:
    """Return the folders of find_runs(), and of all agents of this user that listen, whatever their environment."""
    return set(find_runs()) | {folder for folder in _listening() if _is_own(folder)}


def _listening() -> Iterator[Path]:
    """Yield the folders in which an agent listens that seems to be one of this user's."""
    mine = f"dragon-{os.getuid()}"
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        path = Path(line.split(maxsplit=7)[7]) if line.count("/") else Path()
        if path.name == "agent" and path.parent.parent.name == mine:
            yield path.parent


def _is_own(folder: Path) -> bool:
    try:
        return is_private(folder.parent) and is_private(folder)
    except OSError:
        return False


def sweep() -> list[Path]:
    """Remove the folders of runs that have no process left, and data without a run. Returns the folders of the runs.
    Other users' folders are never touched. A folder whose state cannot be determined, for example because it is being
    removed or was made by another version, is left alone."""
    removed = [folder for folder in find_runs() if _is_left_behind(folder)]
    for folder in removed:
        remove_folder(folder)
    known = {folder.name for folder in find_runs()}  # includes runs that have just begun
    for place in {place.parent for place in _data_places(Path("x"))}:
        for data in place.glob(f"dragon-{os.getuid()}.*"):
            if data.name.split(".")[1] not in known and _is_data_left_behind(data):
                shutil.rmtree(data, ignore_errors=True)
    return removed


def remove_ended() -> None:
    """Remove private folders that belong to no run and whose process has ended."""
    for folder in find_runs():
        if not (folder / INFO).exists() and _is_left_behind(folder):
            remove_folder(folder)


def _is_left_behind(folder: Path) -> bool:
    owner = owner_of(folder.name)
    try:
        if owner is None or is_alive(owner):
            return False
        try:
            agent = json.loads(read_private(folder / INFO))["agent"]
            return not is_alive(Owner(*(agent.values() if isinstance(agent, dict) else agent)))
        except (FileNotFoundError, ValueError, LookupError, TypeError):  # it had not begun, or is of another version
            return folder not in set(_listening())
    except OSError:
        return False


def _is_data_left_behind(data: Path) -> bool:
    owner = owner_of(data.name.split(".")[1])
    try:
        return owner is not None and not is_alive(owner) and data.lstat().st_uid == os.getuid()
    except OSError:
        return False


def owner_of(name: str) -> Owner | None:
    """Return the process after which a folder is named; None if it is not in this process's PID namespace."""
    parts = name.split("-")
    if len(parts) != 4 or parts[2] != _processes() or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return Owner(int(parts[0]), int(parts[1]))


def _processes() -> str:
    """Return text that identifies this PID namespace: other containers may share its folders."""
    return f"{os.stat('/proc/self/ns/pid').st_ino:x}"
