"""Starts the interpreter of a run's agent first of all: it imports what it needs while this process does the same.

The agent then receives the settings of its run and its descriptors. It ends if this process ends before it sends them.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from dragon import _core
from dragon.infrastructure import variables
from dragon.infrastructure.signals import PROGRAMS_OWN, ignoring
from dragon.infrastructure.system import check_files

SETTINGS = 3
"""The descriptor on which an agent receives its settings."""
_FEWEST_FILES = 24  # file descriptors that an agent and its zygote need
# Without garbage collection, as nothing that is imported is garbage.
_CODE = (
    "import gc, sys; gc.disable(); sys.argv[1] in sys.path or sys.path.append(sys.argv[1]); "
    "from dragon.agent.main import main; main()"
)
_started: dict[int, tuple[int, int]] = {}  # by the pid of the creator: a forked child has its parent's too


def start_agent() -> None:
    """Start the agent of the run that this process is about to start. Raises RunEndedError, OSError."""
    own = os.getpid()
    if own in _started:
        return
    check_files(_FEWEST_FILES, "a run")
    given = [fd if is_open(fd) else -1 for fd in (1, 2)]  # looked at first: what is opened next gets their numbers
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there, open(os.devnull) as null:
        # Closed streams are the null device.
        streams = [null.fileno() if fd < 0 else fd for fd in (-1, *given)]
        pid = _core.start_executable(
            executable=sys.executable,
            arguments=[sys.executable, *_options(), "-P", "-c", _CODE, os.path.abspath(f"{__file__}/../../..")],
            environment=[f"{key}={value}" for key, value in os.environ.items()],
            descriptors=[*streams, there.fileno()],
            # An agent ignores signals to the program from its start on.
            signals=ignoring([*PROGRAMS_OWN, *(n for n in (signal.SIGHUP,) if signal.getsignal(n) is signal.SIG_IGN)]),
            detached=True,
        )
        if own not in _started:  # else a second thread was faster, and this agent ends
            _started[own] = pid, here.detach()


def start_first() -> None:
    """Start the agent, if this process belongs to no run. Raises RunEndedError, OSError."""
    if variables.RUN not in os.environ:
        start_agent()


def take_agent() -> tuple[int, socket.socket]:
    """Return the process id of the agent that was started, which is done now if it was not, and the connection to it.
    Raises RunEndedError, OSError."""
    start_agent()
    pid, connection = _started.pop(os.getpid())
    return pid, socket.socket(fileno=connection)


def _options() -> list[str]:
    """Return the options of this interpreter that do not change how an agent behaves; its processes, which are forked
    from its zygote, then have them too."""
    flags = sys.flags
    own = "I" if flags.isolated else "E" * flags.ignore_environment + "s" * flags.no_user_site
    own += "S" * flags.no_site + "B" * flags.dont_write_bytecode + "b" * (flags.bytes_warning == 1)
    return [f"-{letter}" for letter in own] + [f"-{'O' * flags.optimize}"] * bool(flags.optimize)


def is_open(fd: int) -> bool:
    """Return whether this process has that descriptor."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
