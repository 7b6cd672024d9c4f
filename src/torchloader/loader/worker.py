"""A loading worker: a process that makes batches until it is told to leave, or its trainer is gone."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from queue import Empty
from typing import Any, NamedTuple

import psutil

from dragon.native.event import Event
from dragon.native.queue import Queue
from dragon.native.value import Value
from torchloader.loader.making import Maker
from torchloader.loader.order import Indices

__all__ = ["Made", "Ready", "Task", "work"]

_LOOK_AFTER_TRAINER = 1.0  # seconds
_NICENESS = 10  # where cores lack a trainer goes first: it waits for its workers soon enough, and they never for it


class Task(NamedTuple):
    """A batch to be made."""

    iteration: int
    number: int
    epoch: int
    indices: Indices


class Ready(NamedTuple):
    """A worker begins, or cannot: then there is an error."""

    worker: int
    error: BaseException | None


class Made(NamedTuple):
    """A batch, or the error that came instead; `seconds` is the time that making it took."""

    worker: int
    iteration: int
    number: int
    seconds: float
    batch: Any
    error: BaseException | None


def work(
    worker: int, slot: int, workers: int, trainer: int, tasks: Queue, results: Queue, leave: Event, floor: Value
) -> None:
    """Make batches. The first message of `tasks` is a Maker and a worker_init_fn; iterations below `floor` are over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer's to answer
    os.nice(_NICENESS)
    try:
        watched = psutil.Process(trainer)
    except psutil.NoSuchProcess:
        return
    try:
        maker = _prepare(tasks, slot, workers)
    except Exception as error:
        results.put(Ready(worker, _with_traceback(error)))
        return
    results.put(Ready(worker, None))
    while not leave.is_set():
        try:
            task: Task | None = tasks.get(timeout=_LOOK_AFTER_TRAINER)
        except Empty:
            if _is_gone(watched):
                return
            continue
        if task is None or leave.is_set():
            return
        if task.iteration >= floor.value:
            _deliver(results, _make(worker, maker, task))
        elif _is_gone(watched):
            return


def _is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _prepare(tasks: Queue, slot: int, workers: int) -> Maker:
    maker: Maker
    initialise: Callable[[int], None] | None
    maker, initialise = tasks.get()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # as many workers as are wanted share the cores
    maker.be_worker(slot, workers)
    if initialise is not None:
        maker.initialise(initialise, slot)
    return maker


def _make(worker: int, maker: Maker, task: Task) -> Made:
    start = time.perf_counter()
    try:
        batch, error = maker(task.epoch, task.indices), None
    except Exception as raised:
        batch, error = None, _with_traceback(raised)
    return Made(worker, task.iteration, task.number, time.perf_counter() - start, batch, error)


def _deliver(results: Queue, made: Made) -> None:
    try:
        results.put(made)
    except Exception as error:  # whatever pickling a batch, or an error, raises
        text = f"what a loading worker made cannot be sent: {type(error).__name__}: {error}"
        if made.error is not None:
            text += f"\n{type(made.error).__name__}: {made.error}\n" + "\n".join(made.error.__notes__)
        results.put(made._replace(batch=None, error=RuntimeError(text)))


def _with_traceback(error: Exception) -> BaseException:
    """The error as the trainer is to see it: where it came from is told in a note, which is sent with it."""
    error.add_note("in a loading worker:\n" + "".join(traceback.format_exception(error)).rstrip())
    return error.with_traceback(None)
