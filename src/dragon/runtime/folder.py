"""The private folder of a run: its sockets and its description. Swept at the next start if nobody is left to do it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dragon.files import write_bytes
from dragon.infrastructure.errors import RunEndedError
from dragon.infrastructure.private import is_private, make_private, read_private

__all__ = [
    "FrontEnd",
    "Owner",
    "RunInfo",
    "UnreadableRunError",
    "all_runs",
    "find_runs",
    "folders_of",
    "hold",
    "is_alive",
    "make_data_folder",
    "make_folder",
    "owner_of",
    "process_start_time",
    "remove_ended",
    "remove_folder",
    "run_name",
    "started_at",
    "sweep",
    "this_machine",
    "this_process",
]

_INFO = "run.json"
# A socket's path must fit in 108 bytes, and the run's folder and the socket's name follow the base.
_LONGEST_BASE = 50
_OF_SESSIONS = "/run/user/"
_SHARED_MEMORY = "/dev/shm"


class UnreadableRunError(RunEndedError):
    """A run's description is not as this version writes it."""


class Owner(msgspec.Struct, frozen=True):
    """A process, by id and start time, so that a later process with the same id is not taken for it."""

    pid: int
    start_time: int


class FrontEnd(msgspec.Struct, frozen=True):
    """The `dragon` command that a run belongs to, and the machine that it is on."""

    process: Owner
    machine: str


class _Agent(msgspec.Struct):
    """What every version says of a run."""

    agent: Owner


class RunInfo(msgspec.Struct):
    """What a process needs in order to join a run of this node, and what the run is called.

    Without a front end the owner is the user's program itself. The nodes of a run share its name, which is empty
    where there is only one, and the time at which it started, in seconds since 1970.
    """

    owner: Owner
    agent: Owner
    arena_fd: int
    command: str = ""
    node: int = 0
    name: str = ""
    started: float = 0.0
    front_end: FrontEnd | None = None

    def write(self, folder: Path) -> None:
        """Put it in the folder, whole or not at all."""
        temporary = folder / f".{_INFO}.{os.getpid()}"
        write_bytes(temporary, msgspec.json.encode(self))
        temporary.chmod(0o600)
        temporary.rename(folder / _INFO)

    @classmethod
    def read(cls, folder: Path) -> RunInfo:
        """Raises RunEndedError where there is no run, UnreadableRunError where it cannot be read."""
        try:
            return msgspec.json.decode(read_private(folder / _INFO), type=cls)
        except OSError as error:
            raise RunEndedError(f"there is no run in {folder} (any more): {error}") from error
        except msgspec.MsgspecError as error:
            raise UnreadableRunError(
                f"the run in {folder} cannot be read, probably because another version of the package started it: use "
                f"that version for it ({error})"
            ) from error


def process_start_time(pid: int) -> int | None:
    """Clock ticks after boot at which a process started; None if it is gone or a zombie.

    Raises OSError where that cannot be told, as without a free descriptor.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def this_process() -> Owner:
    """The calling process."""
    return Owner(os.getpid(), process_start_time(os.getpid()) or 0)


def run_name(folder: Path, info: RunInfo) -> str:
    """What a run is called, the same on all its nodes."""
    return info.name or folder.name.rpartition("-")[2]


def started_at(owner: Owner) -> float:
    """When a process of this machine started, in seconds since 1970."""
    since_boot = owner.start_time / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


def is_alive(owner: Owner) -> bool:
    """Whether exactly that process lives. Raises OSError where that cannot be told."""
    return process_start_time(owner.pid) == owner.start_time


def this_machine() -> str:
    """What tells this machine, or container, from all others."""
    from dragon.infrastructure.node_desc import boot_id  # costs every process some time, and few ask for this

    return boot_id() + os.readlink("/proc/self/ns/pid")


def base_folder() -> Path:
    """The folder of all runs of this user, which is made. Raises RunEndedError where it is somebody else's, or none can
    be made."""
    base = _place()
    base.mkdir(mode=0o700, exist_ok=True)
    return _checked(base)


def _place() -> Path:
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    if own.startswith(_OF_SESSIONS):
        own = ""  # systemd's goes with the user's last login session, and a run may go on
    for parent in (own, *_temporary(), "/tmp", _SHARED_MEMORY):
        if parent and len(parent) <= _LONGEST_BASE and os.access(parent, os.W_OK):
            return Path(parent) / f"dragon-{os.getuid()}"
    raise RunEndedError(
        f"a run needs a folder for its sockets, and neither /tmp nor {_SHARED_MEMORY} can be written; set TMPDIR to "
        f"one that can, with a path of at most {_LONGEST_BASE} characters"
    )


def _temporary() -> list[str]:
    """The folder of temporary files, if there is one: where the root folder is read-only there may be none."""
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
    """A new private folder, named after its owner."""
    owner = this_process()
    while True:
        folder = base_folder() / f"{owner.pid}-{owner.start_time}-{_processes()}-{os.urandom(3).hex()}"
        try:
            folder.mkdir(mode=0o700)
        except FileNotFoundError:  # somebody's sweep took the empty base between the two steps
            continue
        return folder


def hold(folder: Path) -> int:
    """Keep out what clears temporary folders of old files (systemd-tmpfiles), until the descriptor is closed."""
    import fcntl  # agents alone need it

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def make_data_folder(folder: Path, size: int) -> Path:
    """A new private folder for `size` bytes of a run's data: in memory if there is room, else with temporary files."""
    for place in _data_places(folder):
        if os.access(place.parent, os.W_OK) and shutil.disk_usage(place.parent).free > size and make_private(place):
            return Path(tempfile.mkdtemp(dir=place))
    places = " or ".join(map(str, _data_places(folder)))
    raise MemoryError(
        f"there is no room for a dictionary's {size} bytes in {places}, or what is there is not a private folder of "
        "yours; set TMPDIR to a folder of your own that has room"
    )


def _data_places(folder: Path) -> list[Path]:
    """Where a run's data may lie. Named after the run's folder, by which it is known whose they are."""
    name = f"dragon-{os.getuid()}.{folder.name}"
    return [Path(base) / name for base in dict.fromkeys((_SHARED_MEMORY, *_temporary()))]


def folders_of(folder: Path) -> list[Path]:
    """Where a run's data may lie, and its own folder, which comes last."""
    return [*_data_places(folder), folder]


def remove_folder(folder: Path) -> None:
    """Remove a run's folder and its data, and the base if it was the last."""
    for place in folders_of(folder):
        shutil.rmtree(place, ignore_errors=True)
    try:
        folder.parent.rmdir()
    except OSError:
        return  # other runs are in it


def find_runs() -> list[Path]:
    """Folders of this user's runs on this machine, live or left behind."""
    try:
        return sorted(f for f in _checked(_place()).iterdir() if f.is_dir())
    except FileNotFoundError:
        return []


def all_runs() -> set[Path]:
    """The same, and the folders of every agent of this user that listens, whatever environment it was started in."""
    return set(find_runs()) | {folder for folder in _listening() if _is_own(folder)}


def _listening() -> Iterator[Path]:
    """The folders in which an agent listens that looks like one of this user's."""
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
    """Remove the folders of runs of which no process is left, and data without a run; others' are never touched.

    What cannot be told of one folder, as it is being removed, or was made by another version, leaves that one alone.
    """
    removed = [folder for folder in find_runs() if _is_left_behind(folder)]
    for folder in removed:
        remove_folder(folder)
    known = {folder.name for folder in find_runs()}  # of which some may have begun just now
    for place in {place.parent for place in _data_places(Path("x"))}:
        for data in place.glob(f"dragon-{os.getuid()}.*"):
            if data.name.partition(".")[2] not in known and _is_data_left_behind(data):
                shutil.rmtree(data, ignore_errors=True)
    return removed


def remove_ended() -> None:
    """Remove the private folders that are no runs' of processes that have ended."""
    for folder in find_runs():
        if not (folder / _INFO).exists() and _is_left_behind(folder):
            remove_folder(folder)


def _is_left_behind(folder: Path) -> bool:
    owner = owner_of(folder.name)
    try:
        if owner is None or is_alive(owner):
            return False
        try:
            return not is_alive(msgspec.json.decode(read_private(folder / _INFO), type=_Agent).agent)
        except (FileNotFoundError, msgspec.MsgspecError):  # it had not begun, or is of another version
            return folder not in set(_listening())
    except OSError:
        return False


def _is_data_left_behind(data: Path) -> bool:
    owner = owner_of(data.name.partition(".")[2])
    try:
        return owner is not None and not is_alive(owner) and data.lstat().st_uid == os.getuid()
    except OSError:
        return False


def owner_of(name: str) -> Owner | None:
    """The process after which a folder is named, None where it is not of those that this one can see."""
    parts = name.split("-")
    if len(parts) != 4 or parts[2] != _processes() or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return Owner(int(parts[0]), int(parts[1]))


def _processes() -> str:
    """What tells the processes that this one can see from those of other containers, which may share its folders."""
    return f"{os.stat('/proc/self/ns/pid').st_ino:x}"
