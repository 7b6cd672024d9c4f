"""Removes shared memory that killed ranks leave behind; MPI libraries remove it once all ranks have attached, or at the
end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_FOREIGN = ("PMI_", "PMIX_", "PMI2_", "PALS_", "SLURM_", "OMPI_COMM_WORLD_", "HYDRA_", "HYDI_", "MPI_LOCAL", "PRTE_")
_KEPT = ("PMIX_MCA_", "PRTE_MCA_")


def is_foreign(name: str) -> bool:
    """Return whether it is such a variable; those that tune a library are not."""
    return name.startswith(_FOREIGN) and not name.startswith(_KEPT)


def without_foreign_variables(environment: dict[str, str | None]) -> dict[str, str | None]:
    """Return the changes to an environment that remove such variables (None means to remove)."""
    return {name: None for name in os.environ.keys() | environment.keys() if is_foreign(name)}


_MEMORY = Path("/dev/shm")
_PREFIXES = (
    "mpich_shm_",
    "mpich_shar_tmp",
    "sm_segment.",
    "vader_segment.",
    "ucx_shm_posix_",
    "psm2_shm.",
    "psm3_shm.",
    "pmix-gds-shmem",  # of the server of a libpmix, which is killed at the end of the run
)


def remove_segments(since: float) -> list[str]:
    """Remove segments of MPI libraries that this user created after that time and no process uses."""
    left = {}
    for entry in list(os.scandir(_MEMORY)):
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if entry.name.startswith(_PREFIXES) and status.st_uid == os.getuid() and status.st_ctime >= since:
            left[status.st_ino] = entry
    if left:
        for inode in _in_use():
            left.pop(inode, None)
    for entry in left.values():
        Path(entry.path).unlink(missing_ok=True)
    return [entry.name for entry in left.values()]


def _in_use() -> Iterator[int]:
    """Yield the inodes of files in shared memory that processes have open or mapped."""
    memory = _MEMORY.stat().st_dev
    for pid in filter(str.isdigit, os.listdir("/proc")):
        process = Path("/proc", pid)
        try:
            for line in (process / "maps").read_text().splitlines():
                fields = line.split(maxsplit=5)
                if len(fields) > 5 and fields[5].startswith(str(_MEMORY)):
                    yield int(fields[4])
            for descriptor in os.listdir(process / "fd"):
                with suppress(FileNotFoundError):  # it has closed this one; others may be in use
                    status = (process / "fd" / descriptor).stat()
                    if status.st_dev == memory:
                        yield status.st_ino
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue  # it has ended, or is another user's, whose segments these are not
