"""Objects of the start method "dragon" are instances of the standard library's classes, as programs expect."""

from __future__ import annotations

import logging.config
import logging.handlers
import multiprocessing as mp
import multiprocessing.connection
import multiprocessing.pool
import multiprocessing.queues
import multiprocessing.synchronize
import os
import pickle
import threading
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import pytest

import dragon  # noqa: F401

CONTEXT: Any = mp.get_context("dragon")
KINDS: dict[str, tuple[Any, ...]] = {
    "Queue": (mp.queues.Queue,),
    "JoinableQueue": (mp.queues.JoinableQueue, mp.queues.Queue),
    "SimpleQueue": (mp.queues.SimpleQueue,),
    "Lock": (mp.synchronize.Lock,),
    "RLock": (mp.synchronize.RLock,),
    "Semaphore": (mp.synchronize.Semaphore,),
    "BoundedSemaphore": (mp.synchronize.BoundedSemaphore, mp.synchronize.Semaphore),
    "Condition": (mp.synchronize.Condition,),
    "Event": (mp.synchronize.Event,),
    "Barrier": (mp.synchronize.Barrier,),
    "Pipe": (mp.connection.Connection,),
}


def made(name: str) -> Any:
    return {"Barrier": lambda: CONTEXT.Barrier(1), "Pipe": lambda: CONTEXT.Pipe()[0]}.get(
        name, getattr(CONTEXT, name)
    )()


@pytest.mark.parametrize("name", KINDS)
def test_objects_are_instances_of_the_standard_librarys_classes(name: str) -> None:
    for each in (own := made(name), pickle.loads(pickle.dumps(own))):
        assert all(isinstance(each, kind) for kind in KINDS[name])
    # A method that the standard library's class has and ours does not would work on state that is not there.
    for method in dir(own):
        owner = next((cls for cls in type(own).__mro__ if method in vars(cls)), object)
        assert method.startswith("_") or not owner.__module__.startswith("multiprocessing"), f"{own!r}.{method}"


def configure_logging(queue: Any) -> None:
    handler = {"class": "logging.handlers.QueueHandler", "queue": queue}
    logger = {"handlers": ["q"], "level": "INFO", "propagate": False}
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {"q": handler},
            "loggers": {"of this test": logger},
        }
    )


def test_logging_config_accepts_a_queue() -> None:
    queue = CONTEXT.Queue()
    try:
        configure_logging(mp.get_context("spawn").Queue())
    except ValueError:  # CPython's issue 111615
        pytest.skip("logging.config of this Python takes no queue of multiprocessing")
    logging.getLogger("of this test").handlers.clear()
    configure_logging(queue)
    logging.getLogger("of this test").info("said")
    assert queue.get(timeout=30).getMessage() == "said"
    logging.getLogger("of this test").handlers.clear()


def receive(connection: Any) -> None:
    fd = reduction.recv_handle(connection)
    os.write(fd, b"from the process")
    os.close(fd)


def test_a_file_descriptor_can_be_sent_through_a_pipe(tmp_path: Path) -> None:
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=receive, args=(there,))
    process.start()
    with open(tmp_path / "file", "w+") as file:
        reduction.send_handle(here, file.fileno(), process.pid)
        process.join()
        file.seek(0)
        assert file.read() == "from the process"
    first, second = mp.get_context("fork").Pipe()  # the standard library's own are as before
    threading.Thread(target=reduction.send_handle, args=(first, 1, os.getpid())).start()
    os.close(reduction.recv_handle(second))
