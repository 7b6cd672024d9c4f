"""The state that a Python process takes over from its creator: paths, arguments, keys, the start method, logging."""

from __future__ import annotations

import faulthandler
import multiprocessing
import sys
from collections.abc import Iterable
from multiprocessing import process as mp_process
from multiprocessing import util as mp_util

from dragon.infrastructure import cpython
from dragon.infrastructure.messages import Surroundings, decode_surroundings, encode
from dragon.infrastructure.system import restored, sendable
from dragon.runtime.interpreter import is_read_at_start, options, take_over_warnings


def describe(environment: Iterable[str] = ()) -> bytes:
    """Return the encoded state of this process, for a process with changes of these environment variables."""
    folder = mp_process.ORIGINAL_DIR  # type: ignore[attr-defined]
    log_level, log_to_stderr = cpython.log_settings()
    return encode(
        Surroundings(
            path=list(map(sendable, sys.path)),
            arguments=list(map(sendable, sys.argv)),
            authkey=bytes(mp_process.current_process().authkey),
            original_folder=folder and sendable(folder),
            start_method=multiprocessing.get_start_method(allow_none=True),
            log_level=log_level,
            log_to_stderr=log_to_stderr,
            options=options(),
            warning_options=sys.warnoptions,
            writes_bytecode=not sys.dont_write_bytecode,
            faulthandler=faulthandler.is_enabled(),
            variables=[name for name in environment if is_read_at_start(name)],
        )
    )


def take_over(description: bytes) -> None:
    """Apply the state that describe() returned to this process."""
    theirs = decode_surroundings(description)
    sys.path[:] = map(restored, theirs.path)
    sys.argv = list(map(restored, theirs.arguments))
    mp_process.current_process().authkey = theirs.authkey
    mp_process.ORIGINAL_DIR = theirs.original_folder and restored(theirs.original_folder)  # type: ignore[attr-defined]
    own = sys.warnoptions if "PYTHONWARNINGS" in theirs.variables else []
    take_over_warnings([*own, *(option for option in theirs.warning_options if option not in own)])
    sys.dont_write_bytecode = not theirs.writes_bytecode
    if theirs.faulthandler and not faulthandler.is_enabled():
        faulthandler.enable(2)
    if theirs.start_method is not None:
        multiprocessing.set_start_method(theirs.start_method, force=True)
    if theirs.log_level is not None:
        mp_util.get_logger().setLevel(theirs.log_level)
        if theirs.log_to_stderr and not cpython.log_settings()[1]:
            mp_util.log_to_stderr()
