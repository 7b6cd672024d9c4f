"""The first thing a native Python process runs: it makes itself at home and calls the user's function."""

from __future__ import annotations

import multiprocessing
import sys
import traceback
from collections.abc import Callable
from multiprocessing import process as mp_process
from typing import Any

from dragon.runtime import serialization

__all__ = ["run", "write_call"]


def write_call(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """What run() reads: the call, and what the process shares with its creator."""
    surroundings = {
        "argv": list(sys.argv),
        "authkey": bytes(mp_process.current_process().authkey),
        "start_method": multiprocessing.get_start_method(allow_none=True),
    }
    return serialization.dumps((surroundings, target, args, kwargs))


def run(payload: bytes | memoryview, descriptors: list[int]) -> int:
    """Call what write_call() wrote. Returns the exit code: 0, that of sys.exit(), or 1 with a traceback."""
    try:
        surroundings, target, args, kwargs = serialization.loads(payload)
        sys.argv = surroundings["argv"]
        mp_process.current_process().authkey = surroundings["authkey"]
        if surroundings["start_method"] is not None:
            multiprocessing.set_start_method(surroundings["start_method"], force=True)
        target(*args, **kwargs)
    except SystemExit as end:
        return _exit_code(end.code)
    except BaseException as error:
        traceback.print_exception(error)
        return 1
    return 0


def _exit_code(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1
