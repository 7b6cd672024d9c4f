"""How many files a process may have open."""

from __future__ import annotations

import os
import resource

from dragon.infrastructure.errors import RunEndedError

__all__ = ["allow_many_files", "check_files", "files_left", "give_back_limit"]

_GIVEN = resource.getrlimit(resource.RLIMIT_NOFILE)


def allow_many_files() -> None:
    """Let this process have as many files open as the system allows it: most shells set 1,024."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_GIVEN[1], _GIVEN[1]))


def give_back_limit(pid: int) -> None:
    """Set the limit of a child to what this process was started with."""
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, _GIVEN)
    except ProcessLookupError:
        return  # it has ended


def files_left() -> int:
    """How many more this process may open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(os.listdir("/proc/self/fd"))


def check_files(needed: int, what: str) -> None:
    """Raises RunEndedError where `what` needs more open files than this process, or one below it, may have."""
    if 0 <= _GIVEN[1] < needed:
        raise RunEndedError(
            f"{what} needs {needed} open files, and the hard limit is {_GIVEN[1]}: raise it (ulimit -Hn)"
        )
