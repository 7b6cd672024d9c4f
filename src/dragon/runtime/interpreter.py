"""The options and variables that the interpreter, the C library and libraries read only once, when they start.

A forked process has those of the zygote. If its creator has or gives it others, a fresh interpreter is started.
"""

from __future__ import annotations

import faulthandler
import functools
import itertools
import json
import multiprocessing
import sys
import warnings
from collections.abc import Iterable
from multiprocessing import process as mp_process
from multiprocessing import util as mp_util
from typing import NamedTuple

from dragon import cpython
from dragon.infrastructure.system import all_sendable, restored, sendable

# Read by the interpreter. PYTHONPATH is not among them, because sys.path is sent to new processes.
_AT_START = {
    *("PYTHONASYNCIODEBUG", "PYTHONCOERCECLOCALE", "PYTHONCONTEXT_AWARE_WARNINGS", "PYTHONDEVMODE"),
    *("PYTHONDONTWRITEBYTECODE", "PYTHONFAULTHANDLER", "PYTHONHASHSEED", "PYTHONHOME", "PYTHONINTMAXSTRDIGITS"),
    *("PYTHONIOENCODING", "PYTHONMALLOC", "PYTHONMALLOCSTATS", "PYTHONNODEBUGRANGES", "PYTHONOPTIMIZE"),
    *("PYTHONPERFSUPPORT", "PYTHONPLATLIBDIR", "PYTHONPROFILEIMPORTTIME", "PYTHONPYCACHEPREFIX"),
    *("PYTHONTHREAD_INHERIT_CONTEXT", "PYTHONTRACEMALLOC", "PYTHONUNBUFFERED", "PYTHONUTF8", "PYTHONVERBOSE"),
    *("PYTHONWARNDEFAULTENCODING", "PYTHONWARNINGS", "PYTHON_CPU_COUNT", "PYTHON_GIL", "PYTHON_JIT"),
    *("PYTHON_PERF_JIT_SUPPORT", "PYTHON_TLBC", "LANG"),
    *("GLIBC_TUNABLES", "LD_BIND_NOW", "LD_LIBRARY_PATH", "LD_PRELOAD"),
}
_BEGINNINGS_AT_START = ("LC_", "MALLOC_")
# Read by numerical libraries when they are loaded, which importing the main program may have done.
_BEGINNINGS_AT_LOAD = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NUMEXPR_", "NUMBA_")
_READERS = ("numpy", "scipy", "torch", "tensorflow", "numexpr", "numba", "sklearn", "mkl", "jax", "cv2")


def is_read_at_start(variable: str) -> bool:
    """Return whether a variable is read only when the interpreter or C library starts, or a library is loaded."""
    return variable in _AT_START or variable.startswith((*_BEGINNINGS_AT_START, *_BEGINNINGS_AT_LOAD))


@functools.cache
def options() -> list[str]:
    """Return the options of this interpreter, without those that can be applied later: -B, -W, -X faulthandler, and -P,
    as sys.path is sent to new processes."""
    found = cpython.interpreter_flags()
    if "faulthandler" in found:
        at = found.index("faulthandler")
        del found[at - 1 : at + 1]
    names = [word for before, word in itertools.pairwise(["", *found]) if before == "-X"]
    known = {name.partition("=")[0] for name in names}
    for name, value in sys._xoptions.items():
        if name not in known and name != "faulthandler":
            found += ["-X", name if value is True else f"{name}={value}"]
    return [word for word in found if word not in ("-B", "-P") and not word.startswith("-W")]


def options_before_module() -> list[str]:
    """Return the interpreter's options in this process's command line if it runs a module (-m), else nothing."""
    words = sys.orig_argv
    return words[1 : words.index("-m")] if "-m" in words[: len(words) - len(sys.argv) + 1] else []


class Surroundings(NamedTuple):
    """The state that a process shares with its creator. Many processes have the same, so the zygote applies it once."""

    path: list[str]
    arguments: list[str]
    authkey: str  # hexadecimal
    original_folder: str | None  # None if it had been removed
    start_method: str | None
    log_level: int | None
    log_to_stderr: bool
    options: list[str]  # of the interpreter
    warning_options: list[str]
    writes_bytecode: bool
    faulthandler: bool
    variables: list[str]  # variables that are read at the start only, and that differ from those of the run

    @classmethod
    def decode(cls, description: bytes) -> Surroundings:
        """Return what describe() encoded."""
        return cls(*json.loads(description))


def is_fit(theirs: Surroundings) -> bool:
    """Return whether a fork of this process equals a fresh interpreter of a creator with those surroundings."""
    # Libraries that are not loaded in this process yet read their variables later.
    later = all(name.startswith(_BEGINNINGS_AT_LOAD) for name in theirs.variables)
    return theirs.options == options() and (
        not theirs.variables or (later and not any(name in sys.modules for name in _READERS))
    )


_FILTERS = list(warnings.filters)
_OPTIONS = list(sys.warnoptions)


def take_over_warnings(given: list[str]) -> None:
    """Set the warning filters that an interpreter started with `-W` and each of these options has."""
    if given == sys.warnoptions:
        return
    sys.warnoptions[:] = given
    warnings.filters[:] = _FILTERS  # type: ignore[index]
    if given != _OPTIONS:
        warnings._processoptions(given)  # type: ignore[attr-defined]
    warnings._filters_mutated()  # type: ignore[attr-defined]


# The state that describe() encoded last, and the result.
_described: tuple[Surroundings | None, bytes] = (None, b"")


def describe(environment: Iterable[str] = ()) -> bytes:
    """Return the encoded state of this process, for a process with changes of these environment variables."""
    global _described
    log_level, log_to_stderr = cpython.log_settings()
    state = Surroundings(
        path=list(sys.path),
        arguments=list(sys.argv),
        authkey=bytes(mp_process.current_process().authkey).hex(),
        original_folder=mp_process.ORIGINAL_DIR,  # type: ignore[attr-defined]
        start_method=multiprocessing.get_start_method(allow_none=True),
        log_level=log_level,
        log_to_stderr=log_to_stderr,
        options=options(),
        warning_options=sys.warnoptions.copy(),
        writes_bytecode=not sys.dont_write_bytecode,
        faulthandler=faulthandler.is_enabled(),
        variables=list(filter(is_read_at_start, environment)),
    )
    if state != _described[0]:
        sent = state._replace(
            path=all_sendable(state.path),
            arguments=all_sendable(state.arguments),
            original_folder=state.original_folder and sendable(state.original_folder),
        )
        _described = state, json.dumps(sent).encode()
    return _described[1]


def take_over(description: bytes) -> None:
    """Apply the state that describe() returned to this process."""
    theirs = Surroundings.decode(description)
    sys.path[:] = map(restored, theirs.path)
    sys.argv = list(map(restored, theirs.arguments))
    mp_process.current_process().authkey = bytes.fromhex(theirs.authkey)
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
