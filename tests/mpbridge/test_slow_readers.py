"""Pipes, simple queues and pools whose reader is slower than the writers."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import threading
import time
from typing import Any

import pytest

import dragon  # noqa: F401
from conftest import Site

CONTEXT: Any = mp.get_context("dragon")
FRAME = bytes(2**20)
MOST_AHEAD = 32  # frames; some are on their way if the writer is on another node


def send_frames(end: Any, sent: Any, count: int) -> None:
    for number in range(count):
        end.send((number, FRAME))
        sent.value = number + 1


@contextlib.contextmanager
def writer_of(end: Any, count: int) -> Any:
    sent = CONTEXT.Value("i", 0)
    process = CONTEXT.Process(target=send_frames, args=(end, sent, count))
    process.start()
    end.close()
    try:
        yield process, sent
    finally:
        process.kill()
        process.join()


def settled(value: Any) -> int:
    """Return a value once it has not changed for half a second."""
    while True:
        before = value.value
        time.sleep(0.5)
        if before and value.value == before:
            return int(before)


@pytest.mark.parametrize("duplex", [False, True])
def test_a_writer_waits_for_a_slow_reader(duplex: bool) -> None:
    reading, writing = CONTEXT.Pipe(duplex)
    with writer_of(writing, 64) as (_, sent):
        assert settled(sent) <= MOST_AHEAD
        for number in range(64):
            assert reading.recv() == (number, FRAME)
            assert sent.value <= number + MOST_AHEAD
        with pytest.raises(EOFError):
            reading.recv()


def test_a_message_of_any_size_is_sent_without_a_reader() -> None:
    reading, writing = CONTEXT.Pipe(duplex=False)
    message = os.urandom(2**20) * 64
    writing.send_bytes(message)
    assert reading.recv_bytes() == message


def test_small_messages_that_pile_up_are_limited_too() -> None:
    reading, writing = CONTEXT.Pipe(duplex=False)
    count = CONTEXT.Value("i", 0)
    thread = threading.Thread(target=count_sent, args=(writing, count, 1_000_000), daemon=True)
    thread.start()
    assert settled(count) < 200_000
    reading.close()
    thread.join(30)
    assert not thread.is_alive()


def count_sent(end: Any, count: Any, most: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        for number in range(most):
            end.send(number)
            count.value = number + 1


def report_broken(end: Any, ready: Any, sent: Any) -> None:
    try:
        send_frames(end, sent, 1000)
    except BrokenPipeError:
        ready.set()


def hold(end: Any) -> None:
    signal.pause()


@pytest.mark.parametrize("killed", [False, True])
def test_a_waiting_writer_gets_an_error_when_its_reader_closes_or_is_killed(killed: bool) -> None:
    reading, writing = CONTEXT.Pipe(duplex=False)
    sent, broken = CONTEXT.Value("i", 0), CONTEXT.Event()
    reader = CONTEXT.Process(target=hold, args=(reading,))
    writer = CONTEXT.Process(target=report_broken, args=(writing, broken, sent))
    if killed:
        reader.start()
        reading.close()
    writer.start()
    settled(sent)
    if killed:
        reader.kill()
        reader.join()
    else:
        reading.close()
    assert broken.wait(30)
    writer.join()


def test_ctrl_c_interrupts_a_waiting_writer() -> None:
    _reading, writing = CONTEXT.Pipe(duplex=False)
    sent = CONTEXT.Value("i", 0)
    process = CONTEXT.Process(target=report_interrupt, args=(writing, sent))
    process.start()
    settled(sent)
    os.kill(process.pid, signal.SIGINT)
    process.join(30)
    assert process.exitcode == 7


def report_interrupt(end: Any, sent: Any) -> None:
    try:
        send_frames(end, sent, 1000)
    except KeyboardInterrupt:
        os._exit(7)


def put_frames(queue: Any, count: Any, most: int) -> None:
    for number in range(most):
        queue.put((number, FRAME))
        count.value = number + 1


def test_a_put_waits_for_a_slow_reader_of_a_simple_queue() -> None:
    queue, count = CONTEXT.SimpleQueue(), CONTEXT.Value("i", 0)
    process = CONTEXT.Process(target=put_frames, args=(queue, count, 64))
    process.start()
    assert settled(count) <= MOST_AHEAD
    assert [queue.get()[0] for _ in range(64)] == list(range(64))
    process.join()


def test_a_writer_on_another_node_waits_too(site: Site) -> None:
    source = """
import multiprocessing as mp, time
import dragon
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System
from dragon.native.process import Process
from dragon.native.value import Value

FRAME = bytes(2**20)

def send_frames(end, sent):
    for number in range(64):
        end.send((number, FRAME))
        sent.value = number + 1

if __name__ == "__main__":
    mp.set_start_method("dragon")
    reading, writing = mp.Pipe(duplex=False)
    sent = Value("i", 0)
    other = Policy(placement=Policy.Placement.HOST_ID, host_id=System().nodes[1])
    process = Process(send_frames, (writing, sent), policy=other)
    process.start()
    writing.close()
    before = 0
    while not before or sent.value != before:
        before = sent.value
        time.sleep(0.5)
    assert before <= 32, before  # some are on their way
    for number in range(64):
        assert reading.recv() == (number, FRAME)
    process.join()
    print("received all")
"""
    assert site.dragon("-N", "2", site.write(source)).stdout == "received all\n"


def test_results_of_a_worker_on_another_node_wait_until_they_are_collected(site: Site) -> None:
    source = """
import time
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System
from dragon.native.pool import Pool

def large(number):
    return number, bytes(2**20)

if __name__ == "__main__":
    other = Policy(placement=Policy.Placement.HOST_ID, host_id=System().nodes[1])
    with Pool(processes=1, policy=other) as pool:
        results = pool.imap(large, range(100))
        time.sleep(2)
        print([number for number, _ in results] == list(range(100)))
"""
    program = site.dragon("-N", "2", site.write(source), env={"DRAGON_ARENA_SIZE": str(128 * 2**20)})
    assert program.stdout == "True\n"
