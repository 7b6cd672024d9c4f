"""The limit of open files of a process."""

from __future__ import annotations

import os
import resource

from dragon.infrastructure.errors import RunEndedError

_GIVEN = resource.getrlimit(resource.RLIMIT_NOFILE)


def allow_many_files() -> None:
    """Raise the limit of this process to the hard limit: most shells set 1,024."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_GIVEN[1], _GIVEN[1]))


def give_back_limit(pid: int) -> None:
    """Set the limit of a child to the one with which this process was started."""
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, _GIVEN)
    except ProcessLookupError:
        return  # the child has ended


def files_left() -> int:
    """Return how many more files this process may open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(os.listdir("/proc/self/fd"))


def check_files(needed: int, what: str) -> None:
    """Raise RunEndedError if `what` needs more open files than the hard limit of this process."""
    if 0 <= _GIVEN[1] < needed:
        raise RunEndedError(
            f"{what} needs {needed} open files, and the hard limit is {_GIVEN[1]}: raise it (ulimit -Hn)"
        )
