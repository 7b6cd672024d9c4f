"""The worker processes of a pool: their loop, and the outcomes of tasks, as they send them to the pool.

A value or error that is not plain is pickled separately from its message, so that one that cannot be deserialized
fails its own task and no other.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.pool import (  # type: ignore[attr-defined]
    ExceptionWithTraceback,
    MaybeEncodingError,
    mapstar,
    starmapstar,
)
from multiprocessing.util import _flush_std_streams  # type: ignore[attr-defined]
from types import TracebackType
from typing import Any

from dragon import _core, cpython
from dragon.infrastructure.errors import DragonError
from dragon.runtime.handle import Channel, Words
from dragon.runtime.remote import node_of
from dragon.runtime.run import this_run
from dragon.runtime.serialization import dumps, loads

_MOST_MEBIBYTES = 128
_SHARE = 8  # at most one part of so many of the run's memory
MOST_WITHOUT_MEMORY_S = 5.0  # seconds after which a task or result for which there is no memory becomes an error
MEMORY_PAUSE_S = 0.05  # seconds between two attempts to put one


def most_mebibytes() -> int:
    """Return the MiB that results, or waiting tasks, may take in the run's memory: 128, at most an eighth of it."""
    this_run()
    return min(_MOST_MEBIBYTES, max(1, int(_core.usage()["limit"]) // _SHARE >> 20))


def channel_of_results() -> Channel:
    """Return a channel for results, at which workers wait while it has as many bytes as it may have."""
    return Channel(mebibytes=most_mebibytes())


def put_result(results: Channel, message: object) -> None:
    """Put a result. While the run's memory is full, retry for five seconds, then raise MemoryError."""
    deadline: float | None = None
    while True:
        try:
            results.put(message)
            return
        except MemoryError:
            if deadline is None:
                deadline = time.monotonic() + MOST_WITHOUT_MEMORY_S
            if time.monotonic() > deadline:
                raise
            time.sleep(MEMORY_PAUSE_S)


Outcome = tuple[bool, Any, list[Any] | None]
"""(whether the task returned, value or error, buffers): the value itself with None, or pickled with its buffers."""

_POOLS = ("dragon.native.", "dragon.workflows.", "multiprocessing.pool", "concurrent.futures.")  # names of modules
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})


def returned(value: Any, offered: set[int], lasting: bool) -> Outcome:
    """Return the outcome of a task that returned `value`. Raises MaybeEncodingError if it cannot be pickled.

    Args:
        offered: gets the keys of the descriptors that the outcome shares; see cpython.offered_descriptors().
        lasting: whether shared tensors are to be copied.
    """
    kind = type(value)
    if kind in _PLAIN or (kind is list and _PLAIN.issuperset(map(type, value))):
        return True, value, None
    before = cpython.offered_descriptors()
    try:
        packed = _packed(value, lasting)
    except Exception as error:
        raise MaybeEncodingError(error, value) from error
    if now := cpython.offered_descriptors():
        offered &= now
        offered |= now - before
    return True, *packed


def failed(error: BaseException, with_traceback: bool) -> Outcome:
    """Return the outcome of a task that raised `error`: a MaybeEncodingError if it cannot be pickled and loaded."""
    try:  # the outcome is loaded twice, and what is shared can be received once
        packed = _packed(_traced(error, error) if with_traceback else error, lasting=True)
        loads(*packed)
    except Exception as reason:
        packed = _packed(_traced(MaybeEncodingError(reason, error), error), lasting=True)
    return False, *packed


def outcome_of(success: bool, value: bytes, buffers: list[Any]) -> tuple[bool, Any]:
    """Return whether the task returned, and its deserialized value or error."""
    try:
        return success, loads(value, _kept(buffers))
    except Exception as error:
        error.add_note(f"while the {'result' if success else 'error'} of a task of a pool was read")
        return False, error


def _kept(buffers: list[Any]) -> list[Any]:
    """Return a value's buffers, copied into this process's memory if more than half of the run's memory is in use."""
    if buffers:
        usage = _core.usage()
        if usage["in_use"] * 2 > usage["limit"]:
            return [bytearray(buffer) for buffer in buffers]
    return buffers


def _packed(value: object, lasting: bool) -> tuple[bytes, list[Any]]:
    buffers: list[Any] = []
    return dumps(value, buffers.append, lasting=lasting), buffers


def _traced(error: BaseException, origin: BaseException) -> object:
    return ExceptionWithTraceback(error, of_users(origin.__traceback__))


def of_users(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the calls of pools at its beginning; all of it if it has no others."""
    first = trace
    while first is not None and first.tb_frame.f_globals.get("__name__", "").startswith(_POOLS):
        first = first.tb_next
    return first or trace


_numbers: dict[str, int] = {}


def begin_task(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[int, int] | None:
    """Record that this thread begins a task. Returns what end_task() takes; None if the run is not traced."""
    if not _core.tracing():
        return None
    # Not imported before: every module here makes every fork dearer.
    from dragon.infrastructure.metrics import task_word
    from dragon.runtime.agent_client import ask
    from dragon.runtime.protocol.telemetry import NameTask

    if function in (mapstar, starmapstar):
        function = arguments[0][0]
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if name not in _numbers:
        _numbers[name] = ask(NameTask(name))
    number = _numbers[name]
    return number, _core.begin_task(task_word(number, failed=False))


def end_task(begun: tuple[int, int] | None, failed: bool) -> None:
    """Record that this thread has ended the task for which begin_task() returned `begun`."""
    if begun is not None:
        from dragon.infrastructure.metrics import task_word

        number, start = begun
        _core.end_task(task_word(number, failed), start)


START_FAILED = 0  # in place of a ticket: the initializer raised
FINISHED = 2**64 - 1  # in `doing`: this worker has seen the end mark of the tasks
END = 2**64 - 2  # the ticket of the end mark
MOST_TICKETS = 2**64 - 3  # the numbers of tasks are below
_RECEIPT_PAUSE = 0.01  # seconds between two looks whether the pool has received what a result shares
_MOST_UNRECEIVED_S = 10.0  # seconds from the last result's receipt, after which a worker ends in any case


class WorkerLostError(DragonError):
    """A worker died during a task: it was killed, was out of memory, or ended itself."""


@contextmanager
def quietly() -> Iterator[None]:
    """End the worker without a traceback when it is interrupted, as the main program is too, and reports it."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def quiet(work: Callable[..., None]) -> Callable[..., None]:
    """Decorate the function of a worker so that it runs quietly(), from its call on."""
    run = quietly()(work)
    # For runtime.child: it may be interrupted before it has entered quietly().
    run.is_quiet = True  # type: ignore[attr-defined]
    return run


@quiet
def work(
    index: int,
    tasks: Channel,
    results: Channel,
    doing: Words,
    initializer: Callable[..., Any] | None,
    initargs: tuple[Any, ...],
    most: int | None,
    wrap_exceptions: bool,
) -> None:
    """Take tasks, run them and put their results, until the end mark comes (which stays for others) or `most` tasks are
    done.

    `doing[index]` is the ticket of the current task, so that the task of a killed worker is known.
    """
    if initializer is not None:
        try:
            initializer(*initargs)
        except Exception as error:
            results.put((START_FAILED, *failed(error, True)))
            doing[index] = FINISHED
            return
    away = node_of(results._name()) != this_run().node  # another node can receive copies only
    offered: set[int] = set()
    done = 0
    while most is None or done < most:
        try:
            task = tasks._get_task(doing, index)
        except Exception as error:
            ticket = doing[index]
            if not ticket:
                raise
            results.put((ticket, *failed(error, wrap_exceptions)))  # this process cannot deserialize the task
            doing[index] = 0
            continue
        if task is None:
            pass_on_end(tasks)
            _await_receipt(results, offered)
            doing[index] = FINISHED
            return
        ticket, function, args, kwargs = task
        begun = begin_task(function, args)
        try:
            outcome = returned(function(*args, **kwargs), offered, lasting=away)
        except Exception as error:
            outcome = failed(error, wrap_exceptions)
        end_task(begun, failed=not outcome[0])
        _flush()
        try:
            put_result(results, (ticket, *outcome))
        except Exception as error:  # it cannot be pickled, or there is no memory for it
            put_result(results, (ticket, *failed(error, wrap_exceptions)))
        done += 1
        task = function = args = kwargs = outcome = None  # type: ignore[assignment]
    _await_receipt(results, offered)
    doing[index] = 0


def _await_receipt(results: Channel, offered: set[int]) -> None:
    """Wait until the pool has received descriptors that only this process sends; see cpython.offered_descriptors()."""
    deadline: float | None = None
    while offered & cpython.offered_descriptors():
        if results._size():
            deadline = None
        elif deadline is None:
            deadline = time.monotonic() + _MOST_UNRECEIVED_S
        elif time.monotonic() > deadline:
            return  # nobody receives them: the pool's process could not read the result
        time.sleep(_RECEIPT_PAUSE)


def _flush() -> None:
    """Flush stdout and stderr before the result is put: the pool may end the worker once it has all results."""
    try:
        _flush_std_streams()
    except OSError:
        return  # the next print() raises it


def pass_on_end(tasks: Channel) -> None:
    """Put the end mark of the tasks; each worker that takes it puts it again, for the others."""
    tasks._put_task(None, END)
