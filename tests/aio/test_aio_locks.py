"""Asynchronous use of locks, semaphores, events, conditions and barriers."""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import os
import signal
import threading
from typing import Any

import pytest
from loops import in_asyncio, in_each_loop, soon

from dragon import aio
from dragon._core import DestroyedError
from dragon.native.barrier import Barrier
from dragon.native.condition import Condition
from dragon.native.event import Event
from dragon.native.lock import Lock, RLock
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.native.semaphore import Semaphore
from dragon.native.value import Value

CONTEXT = mp.get_context("dragon")


def add_alone(lock: Lock, total: Value, times: int) -> None:
    async def main() -> None:
        awaited = aio.Lock(lock)

        async def add() -> None:
            async with awaited:
                before = total.value
                await asyncio.sleep(0)
                total.value = before + 1

        await asyncio.gather(*(add() for _ in range(times)))

    asyncio.run(main())


@pytest.mark.parametrize("kind", [Lock, RLock])
def test_only_one_task_of_all_processes_has_a_lock(kind: type[Lock]) -> None:
    lock, total = kind(), Value("i", 0)
    processes = [Process(add_alone, (lock, total, 50)) for _ in range(2)]
    for process in processes:
        process.start()
    add_alone(lock, total, 50)
    for process in processes:
        assert process.join(timeout=60) == 0
    assert total.value == 150


@in_each_loop
async def test_a_task_waits_for_a_lock_of_a_thread() -> None:
    lock = Lock()
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    acquiring = asyncio.create_task(aio.Lock(lock).acquire())
    await soon()
    assert not acquiring.done()
    over.set()
    assert await acquiring
    assert lock.acquire(False) is False
    lock.release()
    thread.join()


@pytest.mark.parametrize("pause", [0.0, 0.0002, 0.0005, 0.001, 0.002])
@in_each_loop
async def test_a_cancelled_task_does_not_keep_a_lock(pause: float) -> None:
    lock = Lock()
    awaited = aio.Lock(lock)
    lock.acquire()
    acquiring = asyncio.create_task(awaited.acquire())
    await soon()
    lock.release()
    await asyncio.sleep(pause)
    acquiring.cancel()
    await asyncio.wait([acquiring])
    if not acquiring.cancelled():
        awaited.release()
    async with asyncio.timeout(30):
        async with aio.Lock(lock):
            pass


def hold_and_die(lock: Lock, held: Event) -> None:
    lock.acquire()
    held.set()
    os.kill(os.getpid(), signal.SIGKILL)


@in_asyncio
async def test_a_lock_whose_holder_died_is_acquired_with_a_warning() -> None:
    lock, held = Lock(), Event()
    process = Process(hold_and_die, (lock, held))
    process.start()
    await aio.Event(held).wait()
    await aio.join(process)
    with pytest.warns(RuntimeWarning, match="died"):
        await aio.Lock(lock).acquire()
    lock.release()


@in_each_loop
async def test_a_semaphore_admits_as_many_tasks_as_its_value() -> None:
    semaphore, inside, most = aio.Semaphore(Semaphore(2)), 0, 0

    async def enter() -> None:
        nonlocal inside, most
        async with semaphore:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    await asyncio.gather(*(enter() for _ in range(8)))
    assert most == 2


@pytest.mark.parametrize("make", [Event, CONTEXT.Event])
@in_each_loop
async def test_an_event_wakes_all_waiting_tasks(make: Any) -> None:
    event = make()
    waiting = [asyncio.create_task(aio.Event(event).wait()) for _ in range(20)]
    await soon()
    assert not any(task.done() for task in waiting)
    event.set()
    assert all(await asyncio.gather(*waiting))


def tell(condition: Condition) -> None:
    with condition:
        condition.notify()


@in_each_loop
async def test_another_process_can_notify_a_waiting_task() -> None:
    condition = Condition()
    awaited = aio.Condition(condition)
    async with awaited:
        process = Process(tell, (condition,))
        process.start()
        assert await awaited.wait()
    assert await aio.join(process) == 0


@in_asyncio
async def test_a_task_cancelled_in_a_wait_for_a_condition_has_the_lock() -> None:
    condition = aio.Condition(Condition())
    held: list[bool] = []

    async def wait() -> None:
        async with condition:
            try:
                await condition.wait()
            finally:
                held.append(condition._condition._lock._count() == 1)

    waiting = asyncio.create_task(wait())
    await soon()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert held == [True]
    async with condition:
        pass


@in_asyncio
async def test_wait_for_of_a_condition_waits_for_a_predicate() -> None:
    condition, numbers = aio.Condition(Condition()), list[int]()

    async def take() -> int:
        async with condition:
            await condition.wait_for(lambda: numbers)
            return numbers.pop(0)

    taking = [asyncio.create_task(take()) for _ in range(5)]
    for number in range(5):
        async with condition:
            numbers.append(number)
            condition.notify()
    assert sorted(await asyncio.gather(*taking)) == [0, 1, 2, 3, 4]


def meet(barrier: Barrier, indices: Queue) -> None:
    indices.put(barrier.wait())


@in_each_loop
async def test_tasks_and_processes_can_wait_at_the_same_barrier() -> None:
    barrier, indices = Barrier(3), Queue()
    process = Process(meet, (barrier, indices))
    process.start()
    found = await asyncio.gather(*(aio.Barrier(barrier).wait() for _ in range(2)))
    assert sorted([*found, await aio.Queue(indices).get()]) == [0, 1, 2]
    await aio.join(process)


@in_asyncio
async def test_a_cancelled_task_breaks_its_barrier() -> None:
    barrier = Barrier(3)
    waiting = [asyncio.create_task(aio.Barrier(barrier).wait()) for _ in range(2)]
    await soon()
    waiting[0].cancel()
    with pytest.raises(threading.BrokenBarrierError):
        await waiting[1]
    assert barrier.broken


@in_asyncio
async def test_a_barrier_breaks_after_its_timeout() -> None:
    barrier = Barrier(2, timeout=0.05)
    with pytest.raises(threading.BrokenBarrierError):
        await aio.Barrier(barrier).wait()
    assert barrier.broken


@in_asyncio
async def test_a_destroyed_condition_leaves_its_lock_released() -> None:
    condition = Condition()
    awaited = aio.Condition(condition)

    async def wait() -> None:
        async with awaited:
            await awaited.wait()

    waiting = asyncio.create_task(wait())
    await soon()
    condition._destroy()
    with pytest.raises(DestroyedError):
        await waiting
    assert condition._lock._count() == 0


@pytest.mark.parametrize("kind", [aio.Lock, aio.Semaphore, aio.Event, aio.Condition, aio.Barrier])
def test_an_object_that_is_not_shared_is_refused(kind: Any) -> None:
    for shared in (object(), threading.Barrier(2)):
        with pytest.raises(TypeError, match="this takes a"):
            kind(shared)


@pytest.mark.parametrize("kind", [Lock, RLock])
def test_a_task_of_another_loop_of_the_thread_waits_for_a_lock(kind: type[Lock]) -> None:
    lock = aio.Lock(kind())
    one, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    over = asyncio.Event()

    async def hold(entered: list[str], name: str) -> None:
        async with lock:
            entered.append(name)
            await over.wait()

    entered: list[str] = []
    holding = one.create_task(hold(entered, "first"))
    one.run_until_complete(asyncio.sleep(0.05))
    waiting = other.create_task(hold(entered, "of the other loop"))
    other.run_until_complete(asyncio.sleep(0.2))
    third = one.create_task(hold(entered, "third"))
    one.run_until_complete(asyncio.sleep(0.2))
    assert entered == ["first"]
    over.set()
    one.run_until_complete(holding)
    other.run_until_complete(waiting)
    one.run_until_complete(third)
    assert sorted(entered) == ["first", "of the other loop", "third"]
    one.close()
    other.close()
