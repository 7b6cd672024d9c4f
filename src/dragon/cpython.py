"""Functions that use private names of CPython, where the documented ones do not suffice.

`tests/infrastructure/test_cpython.py` checks what each is expected to do, with every version of Python. Changes of
classes of the standard library are in `mpbridge`: `context`, `synchronize` and `popen`.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import context as mp_context
from multiprocessing import process as mp_process
from multiprocessing import spawn as mp_spawn
from multiprocessing import util as mp_util
from multiprocessing.reduction import ForkingPickler

TYPE_CHECKING = False  # see dragon/__init__.py
if TYPE_CHECKING:
    from random import Random
    from typing import Any

_close_stdin = mp_util._close_stdin  # type: ignore[attr-defined]  # kept: freeing it would write to twenty pages


# ---- the end of a process


def is_exiting() -> bool:
    """Return whether multiprocessing's exit handler runs, because the interpreter ends."""
    return bool(mp_util._exiting)  # type: ignore[attr-defined]


def end_multiprocessing() -> None:
    """End multiprocessing as at the end of a process: call finalizers, end daemons, and wait for other children."""
    mp_util._exit_function()  # type: ignore[attr-defined]


def call_exit_handlers() -> None:
    """Call the functions registered with `atexit`."""
    atexit._run_exitfuncs()


def end() -> None:
    """End this process's threads that are no daemons, then multiprocessing, and call the functions registered with
    `atexit`, as the interpreter does at its end."""
    threading._shutdown()  # type: ignore[attr-defined]
    mp_util._exit_function()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def forget_exit_handlers() -> None:
    """Remove the functions registered with `atexit`."""
    atexit._clear()


def forget_finalizers() -> None:
    """Remove the finalizers of multiprocessing that belong to the process from which this one was forked."""
    mp_util._finalizer_registry.clear()  # type: ignore[attr-defined]


def call_fork_hooks() -> None:
    """Call the functions registered with `multiprocessing.util.register_after_fork()`, as in a forked child."""
    mp_util._run_after_forkers()  # type: ignore[attr-defined]


def flush_streams() -> None:
    """Flush stdout and stderr, if they exist."""
    mp_util._flush_std_streams()  # type: ignore[attr-defined]


# ---- a new process


@contextmanager
def making() -> Iterator[None]:
    """Mark this process, within the block, as one that is being started: it unpickles its creator's data or imports the
    main program."""
    current = mp_process.current_process()
    current._inheriting = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del current._inheriting  # type: ignore[attr-defined]


def is_being_made() -> bool:
    """Return whether this process is within making()."""
    return getattr(mp_process.current_process(), "_inheriting", False)


def be_daemon(name: str, number: int, parent: int) -> None:
    """Let multiprocessing see this process as a child of process `parent`: a daemon without children, with this name
    and number. Raises ProcessLookupError if the parent has ended."""
    from dragon._core import open_process  # which few processes need that import this module

    creator = mp_process.current_process()
    own = mp_process.BaseProcess(name=name, daemon=True)
    own._identity = (*creator._identity, number)
    sentinel = open_process(parent)
    state = vars(mp_process)
    state["_parent_process"] = state["_ParentProcess"](creator.name, parent, sentinel)
    state.update(_current_process=own, _children=set(), _process_counter=itertools.count(1))


def check_not_importing_main() -> None:
    """Raise RuntimeError if the main program is being imported, and so must not start a process."""
    mp_spawn._check_not_importing_main()  # type: ignore[attr-defined]


def import_main(kind: str, which: str) -> None:
    """Import the main program as `__mp_main__`, by "name" or by "path"."""
    getattr(mp_spawn, f"_fixup_main_from_{kind}")(which)


def leave_stdin() -> None:
    """Do not replace stdin in this new process: it is empty already, and the replacement would write to fifty pages."""
    mp_util._close_stdin = _nothing  # type: ignore[attr-defined]


def _nothing() -> None:
    pass


def renew_native_id() -> None:
    """Update the main thread's native id in a process that was forked without the interpreter's knowledge."""
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]


def forget_ended_children() -> None:
    """Reap the children that have ended."""
    mp_process._cleanup()  # type: ignore[attr-defined]


def note_child(process: object) -> None:
    """Register a started process, so that it is awaited at the end."""
    mp_process._children.add(process)  # type: ignore[attr-defined]


# ---- start methods


def start_methods() -> dict[str, Any]:
    """Return the contexts of all start methods, by name; one that is added to the dict can be chosen."""
    table: dict[str, Any] = mp_context._concrete_contexts  # type: ignore[attr-defined]
    return table


@contextmanager
def without_start_method() -> Iterator[None]:
    """Unset the start method within the block, so that the main program may choose one."""
    default = mp_context._default_context
    chosen, default._actual_context = default._actual_context, None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        default._actual_context = chosen  # type: ignore[attr-defined]


# ---- other parts


def type_reducers() -> dict[type, Any]:
    """Return the reducers registered with ForkingPickler.register()."""
    reducers: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    return reducers


def log_settings() -> tuple[int | None, bool]:
    """Return the level of multiprocessing's logger, None if it was never requested, and whether it logs to stderr."""
    logger = mp_util._logger  # type: ignore[attr-defined]
    return None if logger is None else logger.getEffectiveLevel(), bool(mp_util._log_to_stderr)  # type: ignore[attr-defined]


def offered_descriptors() -> frozenset[int]:
    """Return keys of the descriptors that this process offers in messages (of shared tensors, sockets, pipes) and that
    nobody has received yet."""
    module = sys.modules.get("multiprocessing.resource_sharer")
    return frozenset() if module is None else frozenset(module._resource_sharer._cache)


def place_temporary_folder(make: Callable[[], str | None]) -> None:
    """Let `make` make the folder in which multiprocessing has this process's sockets and temporary files. The process
    removes the folder at its end. If it does not exist, as it was the creator's on another node or was removed, another
    one is made. If `make` returns None, multiprocessing makes the folder."""
    usual = getattr(mp_util.get_temp_dir, "__wrapped__", mp_util.get_temp_dir)

    @functools.wraps(usual)
    def get_temp_dir() -> str:
        configuration: dict[str, Any] = mp_process.current_process()._config  # type: ignore[attr-defined]
        if not os.path.isdir(configuration.get("tempdir") or ""):
            made = configuration["tempdir"] = make()
            if made is not None:
                from shutil import rmtree  # imported late: few programs need it

                remove = functools.partial(rmtree, ignore_errors=True)
                mp_util.Finalize(None, mp_util._remove_temp_dir, (remove, made), exitpriority=-100)  # type: ignore[attr-defined]
        return usual()

    mp_util.get_temp_dir = get_temp_dir


def resource_tracker() -> Any:
    """Return multiprocessing's tracker of shared memory in this process, with `_lock`, `_fd` and `_pid`."""
    from multiprocessing import resource_tracker as module

    return module._resource_tracker


def helpers() -> set[int]:
    """Return the process ids of multiprocessing's tracker and fork server, as far as they run."""
    from multiprocessing import forkserver

    pids = resource_tracker()._pid, forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return {pid for pid in pids if pid is not None}


def interpreter_flags() -> list[str]:
    """Return the options with which this interpreter was started."""
    import subprocess

    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def random_generator() -> Random:
    """Return the generator behind the functions of `random`."""
    import random

    generator: Random = vars(random)["_inst"]
    return generator
