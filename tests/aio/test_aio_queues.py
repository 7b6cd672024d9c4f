"""Asynchronous use of queues and connections: get, put, join, recv and send."""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import queue
import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from loops import in_asyncio, in_each_loop, soon

from dragon import aio
from dragon._core import DestroyedError
from dragon.aio import waiting
from dragon.native.process import Process
from dragon.native.queue import Queue, QueueError

CONTEXT = mp.get_context("dragon")


@in_each_loop
async def test_a_get_waits_for_an_object() -> None:
    shared = Queue()
    getting = asyncio.create_task(aio.Queue(shared).get())
    await soon()
    assert not getting.done()
    shared.put("an object")
    assert await getting == "an object"


def double(numbers: Queue, doubled: Queue) -> None:
    while (number := numbers.get()) is not None:
        doubled.put(2 * number)


@in_each_loop
async def test_objects_of_other_processes_are_received() -> None:
    numbers, doubled = Queue(), Queue()
    process = Process(double, (numbers, doubled))
    process.start()
    there, back = aio.Queue(numbers), aio.Queue(doubled)
    for number in range(20):
        await there.put(number)
        assert await back.get() == 2 * number
    await there.put(None)
    assert await aio.join(process) == 0


@in_each_loop
async def test_a_put_waits_for_space() -> None:
    shared = Queue(1)
    await aio.Queue(shared).put(1)
    putting = asyncio.create_task(aio.Queue(shared).put(2))
    await soon()
    assert not putting.done()
    assert shared.get() == 1
    await putting
    assert shared.get() == 2


@in_each_loop
async def test_a_join_waits_for_task_done() -> None:
    shared = Queue(joinable=True)
    shared.put("work")
    joining = asyncio.create_task(aio.Queue(shared).join())
    await soon()
    assert not joining.done()
    shared.get()
    shared.task_done()
    await joining


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue", "SimpleQueue"])
@in_asyncio
async def test_queues_of_multiprocessing_can_be_awaited(kind: str) -> None:
    shared = getattr(CONTEXT, kind)()
    getting = asyncio.create_task(aio.Queue(shared).get())
    await soon()
    shared.put(1)
    assert await getting == 1
    await aio.Queue(shared).put(2)
    assert shared.get() == 2


@in_asyncio
async def test_ten_thousand_pending_gets_use_no_threads_and_are_served_in_order() -> None:
    shared = Queue(0)
    threads = threading.active_count()
    getting = [asyncio.create_task(aio.Queue(shared).get()) for _ in range(10_000)]
    await soon()
    assert threading.active_count() == threads
    for number in range(10_000):
        shared.put(number)
    assert await asyncio.gather(*getting) == [*range(10_000)]


@in_asyncio
async def test_a_thousand_queues_can_be_awaited_at_once() -> None:
    shared = [Queue() for _ in range(1000)]
    getting = [asyncio.create_task(aio.Queue(each).get()) for each in shared]
    await soon()
    for number, each in enumerate(shared):
        each.put(number)
    assert await asyncio.gather(*getting) == [*range(1000)]


@in_each_loop
async def test_a_get_that_times_out_does_not_take_a_later_object() -> None:
    shared = Queue()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await aio.Queue(shared).get()
    shared.put(1)
    assert await aio.Queue(shared).get() == 1


@in_each_loop
async def test_cancelling_at_any_time_loses_no_message() -> None:
    shared, dice = Queue(0), random.Random(1)
    awaited, taken = aio.Queue(shared), []

    async def take() -> None:
        taken.append(await awaited.get())

    for number in range(300):
        taking = asyncio.create_task(take())
        for _ in range(dice.randrange(4)):
            await asyncio.sleep(0)
        shared.put(number)
        for _ in range(dice.randrange(4)):
            await asyncio.sleep(0)
        taking.cancel()
        await asyncio.wait([taking])
    while shared.size():
        taken.append(shared.get_nowait())
    assert taken == [*range(300)]


@in_asyncio
async def test_a_queue_is_an_asynchronous_iterator() -> None:
    shared = Queue()
    for number in range(3):
        shared.put(number)
    found = []
    async for number in aio.Queue(shared):
        found.append(number)
        if len(found) == 3:
            break
    assert found == [0, 1, 2]


@in_asyncio
async def test_a_queue_that_is_destroyed_ends_the_wait() -> None:
    shared = Queue()
    getting = asyncio.create_task(aio.Queue(shared).get())
    await soon()
    Queue.attach(shared.serialize()).destroy()
    with pytest.raises((ValueError, LookupError, RuntimeError)):
        await getting


def destroy(queue: Queue) -> None:
    queue.destroy()


@in_asyncio
async def test_a_queue_that_another_process_destroys_ends_the_wait() -> None:
    shared = Queue()
    getting = asyncio.create_task(aio.Queue(shared).get())
    await soon()
    process = Process(destroy, (shared,))
    process.start()
    async with asyncio.timeout(60):
        with pytest.raises(DestroyedError):
            await getting
    await aio.join(process)


@in_asyncio
async def test_a_queue_that_is_not_joinable_cannot_be_joined() -> None:
    with pytest.raises(QueueError, match="joinable=True"):
        await aio.Queue(Queue()).join()
    with pytest.raises(TypeError, match="use a JoinableQueue"):
        await aio.Queue(CONTEXT.Queue()).join()


def test_an_object_that_is_not_a_shared_queue_is_refused() -> None:
    with pytest.raises(TypeError, match=r"aio\.Queue takes a queue of dragon\.native or of multiprocessing"):
        aio.Queue(queue.Queue())


@in_each_loop
async def test_recv_waits_for_a_message_of_a_connection() -> None:
    one, other = CONTEXT.Pipe()
    receiving = asyncio.create_task(aio.recv(one))
    await soon()
    other.send("a message")
    assert await receiving == "a message"


@in_asyncio
async def test_recv_raises_eof_error_for_a_closed_connection() -> None:
    one, other = CONTEXT.Pipe()
    receiving = asyncio.create_task(aio.recv(one))
    await soon()
    other.close()
    with pytest.raises(EOFError):
        await receiving


async def fill(end: Any) -> asyncio.Task[None]:
    """Send until a connection has no room, and return the task that waits to send more."""
    while True:
        sending = asyncio.create_task(aio.send(end, bytes(2**20)))
        await soon()
        if not sending.done():
            return sending


@in_each_loop
async def test_send_waits_for_room() -> None:
    one, other = CONTEXT.Pipe()
    sending = await fill(one)
    while not sending.done():
        await aio.recv(other)
        await soon()
    await sending


@in_asyncio
async def test_send_raises_broken_pipe_error_once_the_other_end_is_closed() -> None:
    one, other = CONTEXT.Pipe()
    sending = await fill(one)
    other.close()
    with pytest.raises(BrokenPipeError):
        await sending


def test_loops_of_other_threads_may_await_channels_while_those_that_are_gone_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exists(offset: int, generation: int) -> bool:
        waiting._bells.add((offset, generation + 1))  # as another thread does
        return False

    monkeypatch.setattr(waiting, "_bells", {(offset, 1) for offset in range(waiting._MOST_BELLS)})
    monkeypatch.setattr(waiting, "_core", SimpleNamespace(exists=exists))
    assert not waiting._may_ring((1000, 1))  # the others are there now
    assert len(waiting._bells) == waiting._MOST_BELLS


@in_each_loop
async def test_tasks_get_objects_in_the_order_of_their_calls_while_objects_arrive() -> None:
    queue, got = aio.Queue(Queue()), []

    async def get(number: int) -> None:
        got.append((number, await queue.get()))

    waiting = []
    for number in range(30):
        waiting.append(asyncio.create_task(get(2 * number)))
        await asyncio.sleep(0)
        queue.put_nowait(2 * number)
        queue.put_nowait(2 * number + 1)
        if number % 3 == 0:
            await asyncio.sleep(0.002)
        waiting.append(asyncio.create_task(get(2 * number + 1)))
    await asyncio.gather(*waiting)
    assert sorted(got) == [(number, number) for number in range(60)]


@in_each_loop
async def test_tasks_put_objects_in_the_order_of_their_calls() -> None:
    shared = Queue(2)
    queue = aio.Queue(shared)
    putting = [asyncio.create_task(queue.put(number)) for number in range(5)]
    await asyncio.sleep(0.05)
    assert shared.get() == 0
    putting.append(asyncio.create_task(queue.put(5)))  # there is room, but others came earlier
    assert [await queue.get() for _ in range(5)] == [1, 2, 3, 4, 5]
    await asyncio.gather(*putting)
