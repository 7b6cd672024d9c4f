"""The entry point of native Python processes: call the user's function and return its exit code."""

from __future__ import annotations

import signal
import sys

from dragon import cpython
from dragon.infrastructure.errors import DragonError, RunEndedError
from dragon.runtime import serialization
from dragon.runtime.child import end_as_interrupted, run_exit_handlers, write_traceback
from dragon.runtime.run import identity

_INTERRUPTED = -signal.SIGINT
_MOST = 1 << 63  # one more than the largest value of C's long


def run(payload: bytes | memoryview, descriptors: list[int]) -> int:
    """Call the function that serialization.dumps_call() wrote. Returns the exit code: 0, that of sys.exit(), or 1 after
    an exception, whose traceback is written.

    A process that is interrupted ends by SIGINT.
    """
    code = _call(payload)
    in_order = run_exit_handlers(code)
    if code == _INTERRUPTED:
        end_as_interrupted()
    return code if in_order else code or 1


def _call(payload: bytes | memoryview) -> int:
    cpython.forget_finalizers()
    begun = False
    try:
        target, args, kwargs = serialization.loads(payload)
        begun = not getattr(target, "is_quiet", False)
        target(*args, **kwargs)
    except SystemExit as end:
        return _exit_code(end.code)
    except KeyboardInterrupt as error:
        if begun and not _is_stopped():
            write_traceback(error)
        return _INTERRUPTED
    except BaseException as error:
        if not isinstance(error, RunEndedError):  # which is reported where the run was started
            write_traceback(error)
        return 1
    return 0


def _is_stopped() -> bool:
    """Return whether the interrupt is the first step of stopping this process's group, and therefore not an error."""
    from dragon.runtime.agent_client import ask  # few processes need these
    from dragon.runtime.protocol.groups import IsGroupEnding

    group = identity().group
    try:
        return bool(group) and ask(IsGroupEnding(group))
    except DragonError:
        return True  # the run ends, or the node that supervises the group is lost


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -_MOST <= code < _MOST else 0xFF  # as a Python program does
    print(code, file=sys.stderr)
    return 1
