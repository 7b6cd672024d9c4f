"""The private names of CPython that the package needs, where the documented ones do not do.

`tests/infrastructure/test_cpython.py` says what each is taken to do, and is run with every version of Python. What
changes classes of the standard library is in `mpbridge`: `context`, `standard_queues` and `standard_executors`.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import context as mp_context
from multiprocessing import process as mp_process
from multiprocessing import spawn as mp_spawn
from multiprocessing import util as mp_util
from multiprocessing.reduction import ForkingPickler
from typing import Any

__all__ = [
    "call_exit_handlers",
    "call_fork_hooks",
    "check_not_importing_main",
    "end_multiprocessing",
    "end_threads",
    "flush_streams",
    "forget_ended_children",
    "forget_exit_handlers",
    "forget_finalizers",
    "helpers",
    "import_main",
    "interpreter_flags",
    "is_being_made",
    "is_exiting",
    "leave_stdin",
    "log_settings",
    "making",
    "note_child",
    "random_generator",
    "renew_native_id",
    "resource_tracker",
    "start_methods",
    "type_reducers",
    "without_start_method",
]

_close_stdin = mp_util._close_stdin  # type: ignore[attr-defined]  # kept: freeing it would write to twenty pages


# ---- the end of a process


def is_exiting() -> bool:
    """Whether multiprocessing's exit handler runs: the interpreter ends."""
    return bool(mp_util._exiting)  # type: ignore[attr-defined]


def end_threads() -> None:
    """Wait for threads that are no daemons, as the interpreter does at its end."""
    threading._shutdown()  # type: ignore[attr-defined]


def end_multiprocessing() -> None:
    """What multiprocessing does at the end of a process: finalizers, ends of daemons, and waits for other children."""
    mp_util._exit_function()  # type: ignore[attr-defined]


def call_exit_handlers() -> None:
    """Call what was registered with `atexit`."""
    atexit._run_exitfuncs()


def forget_exit_handlers() -> None:
    """Forget what was registered with `atexit`."""
    atexit._clear()


def forget_finalizers() -> None:
    """Forget what multiprocessing would do at the end of the process that this one was forked from."""
    mp_util._finalizer_registry.clear()  # type: ignore[attr-defined]


def call_fork_hooks() -> None:
    """Call what was registered with `multiprocessing.util.register_after_fork()`, as in a child that is forked."""
    mp_util._run_after_forkers()  # type: ignore[attr-defined]


def flush_streams() -> None:
    """Flush stdout and stderr, as far as they are there."""
    mp_util._flush_std_streams()  # type: ignore[attr-defined]


# ---- a new process


@contextmanager
def making() -> Iterator[None]:
    """This process is being made: what its creator has sent is unpickled, or the main program imported."""
    current: Any = mp_process.current_process()
    current._inheriting = True
    try:
        yield
    finally:
        del current._inheriting


def is_being_made() -> bool:
    """Whether making() goes on."""
    return getattr(mp_process.current_process(), "_inheriting", False)


def check_not_importing_main() -> None:
    """Raises RuntimeError where the main program is being imported, and so may start no process."""
    mp_spawn._check_not_importing_main()  # type: ignore[attr-defined]


def import_main(kind: str, which: str) -> None:
    """Import the main program as `__mp_main__`, by "name" or by "path"."""
    getattr(mp_spawn, f"_fixup_main_from_{kind}")(which)


def leave_stdin() -> None:
    """Have a new process leave stdin as it is: it is empty already, and fifty pages stay unwritten."""
    mp_util._close_stdin = _nothing  # type: ignore[attr-defined]


def _nothing() -> None:
    pass


def renew_native_id() -> None:
    """In a process that was forked without the interpreter's knowledge: the main thread's id was its parent's."""
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]


def forget_ended_children() -> None:
    """Reap the children that have ended."""
    mp_process._cleanup()  # type: ignore[attr-defined]


def note_child(process: Any) -> None:
    """A process was started, and is to be awaited at the end."""
    mp_process._children.add(process)  # type: ignore[attr-defined]


# ---- start methods


def start_methods() -> dict[str, Any]:
    """The contexts of all start methods, by name; one that is added can be chosen."""
    table: dict[str, Any] = mp_context._concrete_contexts  # type: ignore[attr-defined]
    return table


@contextmanager
def without_start_method() -> Iterator[None]:
    """No start method is chosen within, so that the main program may choose one."""
    default: Any = mp_context._default_context
    chosen, default._actual_context = default._actual_context, None
    try:
        yield
    finally:
        default._actual_context = chosen


# ---- other parts


def type_reducers() -> dict[type, Any]:
    """What ForkingPickler.register() was told."""
    reducers: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    return reducers


def log_settings() -> tuple[int | None, bool]:
    """The level of multiprocessing's logger, None where nobody has asked for it, and whether it goes to stderr."""
    logger = mp_util._logger  # type: ignore[attr-defined]
    return None if logger is None else logger.getEffectiveLevel(), bool(mp_util._log_to_stderr)  # type: ignore[attr-defined]


def resource_tracker() -> Any:
    """multiprocessing's tracker of shared memory in this process: `_lock`, `_fd` and `_pid`."""
    from multiprocessing import resource_tracker as module

    return module._resource_tracker


def helpers() -> set[int]:
    """Process ids of multiprocessing's tracker and fork server, of those that run."""
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    return {pid for pid in (resource_tracker()._pid, server._forkserver_pid) if pid is not None}


def interpreter_flags() -> list[str]:
    """The options that this interpreter was started with."""
    import subprocess

    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def random_generator() -> Any:
    """The generator behind the functions of `random`."""
    import random

    return vars(random)["_inst"]
