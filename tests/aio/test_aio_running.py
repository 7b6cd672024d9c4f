"""Awaiting processes, groups, results of pools and batches, and keys of dictionaries."""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import time
from collections.abc import Iterator

import pytest
from loops import in_asyncio, in_each_loop, soon

from dragon import aio
from dragon.data.ddict import DDict
from dragon.native.pool import Pool
from dragon.native.process import Process, ProcessTemplate
from dragon.native.process_group import DragonUserCodeError, ProcessGroup
from dragon.workflows.batch import Batch, TaskCancelledError

CONTEXT = mp.get_context("dragon")


def leave(code: int) -> None:
    time.sleep(0.05)
    raise SystemExit(code)


@in_each_loop
async def test_the_end_of_a_process_can_be_awaited() -> None:
    process = Process(leave, (3,))
    process.start()
    assert await aio.join(process) == 3
    assert await aio.join(process) == 3


@in_each_loop
async def test_the_end_of_a_process_of_multiprocessing_can_be_awaited() -> None:
    process = CONTEXT.Process(target=leave, args=(3,))
    process.start()
    await aio.join(process)
    assert process.exitcode == 3


@in_asyncio
async def test_a_process_of_another_start_method_is_refused() -> None:
    process = mp.get_context("spawn").Process(target=leave, args=(0,))
    process.start()
    with pytest.raises(TypeError, match="start method 'dragon'"):
        await aio.join(process)
    process.join()


@in_each_loop
async def test_the_end_of_a_group_can_be_awaited() -> None:
    group = ProcessGroup()
    group.add_process(3, ProcessTemplate(leave, (0,)))
    group.init()
    group.start()
    await aio.join(group)
    assert [code for _, code in group.exit_status] == [0] * 3
    group.close()


@in_asyncio
async def test_awaiting_a_group_with_a_failed_member_raises_an_error() -> None:
    group = ProcessGroup()
    group.add_process(1, ProcessTemplate(leave, (4,)))
    group.init()
    group.start()
    with pytest.raises(DragonUserCodeError, match="4"):
        await aio.join(group)
    group.close()


def square(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number * number


@pytest.mark.parametrize("make", [Pool, CONTEXT.Pool])
@in_each_loop
async def test_results_of_a_pool_can_be_awaited(make: type[Pool]) -> None:
    with make(2) as pool:
        pending = [pool.apply_async(square, (number,)) for number in range(30)]
        assert await asyncio.gather(*map(aio.result, pending)) == [number * number for number in range(30)]
        assert await aio.result(pool.map_async(square, range(5))) == [0, 1, 4, 9, 16]


@in_asyncio
async def test_an_exception_of_a_pools_task_is_raised() -> None:
    with Pool(1) as pool, pytest.raises(ValueError, match="-1 is negative"):
        await aio.result(pool.apply_async(square, (-1,)))


@in_each_loop
async def test_results_of_imap_can_be_iterated() -> None:
    with CONTEXT.Pool(2) as pool:
        assert [found async for found in aio.results(pool.imap(square, range(40)))] == [n * n for n in range(40)]
        unordered = [found async for found in aio.results(pool.imap_unordered(square, range(40)))]
        assert sorted(unordered) == [n * n for n in range(40)]


@in_each_loop
async def test_results_of_several_pools_can_be_awaited_together() -> None:
    with Pool(1) as one, Pool(1) as other:
        pending = [pool.apply_async(square, (number,)) for number in range(30) for pool in (one, other)]
        async with asyncio.timeout(60):
            found = await asyncio.gather(*map(aio.result, pending))
        assert found == [number * number for number in range(30) for _ in range(2)]


@in_asyncio
async def test_results_of_imap_in_chunks_can_be_iterated() -> None:
    with CONTEXT.Pool(2) as pool:
        found = [found async for found in aio.results(pool.imap(square, range(20), chunksize=3))]
        assert found == [n * n for n in range(20)]


def put_later(ddict: DDict, key: str, values: list[int]) -> None:
    for value in values:
        time.sleep(0.02)
        ddict[key] = value


@in_each_loop
async def test_get_waits_until_a_key_is_written() -> None:
    ddict = DDict(1, 1, 2**22)
    process = Process(put_later, (ddict, "key", [5]))
    process.start()
    assert await aio.Dict(ddict).get("key") == 5
    await aio.join(process)
    ddict.destroy()


@in_asyncio
async def test_wait_for_waits_until_a_key_has_a_value() -> None:
    ddict = DDict(1, 1, 2**22)
    process = Process(put_later, (ddict, "key", [1, 2, 3]))
    process.start()
    await aio.Dict(ddict).wait_for("key", 3)
    assert ddict["key"] == 3
    await aio.join(process)
    ddict.destroy()


@in_asyncio
async def test_a_wait_for_a_key_can_be_cancelled() -> None:
    ddict = DDict(1, 1, 2**22)
    waiting = asyncio.create_task(aio.Dict(ddict).get("never"))
    await soon()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    ddict.destroy()


def slow_square(number: int) -> int:
    time.sleep(0.3)
    return square(number)


@pytest.fixture
def batch() -> Iterator[Batch]:
    with Batch(workers_per_node=2) as batch:
        yield batch


@in_each_loop
async def test_results_of_a_batch_can_be_awaited(batch: Batch) -> None:
    tasks = [batch.function(square, number) for number in range(30)]
    assert await asyncio.gather(*map(aio.result, tasks)) == [number * number for number in range(30)]
    assert await aio.result(tasks[3]) == 9
    with pytest.raises(ValueError, match="negative"):
        await aio.result(batch.function(square, -1))


@in_asyncio
async def test_the_event_loop_is_not_blocked_while_a_task_of_a_batch_runs(batch: Batch) -> None:
    task = batch.function(slow_square, 7)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await aio.result(task)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    turning = asyncio.create_task(turn())
    assert await aio.result(task) == 49
    assert turns > 2
    turning.cancel()


@in_asyncio
async def test_cancelling_a_task_of_a_batch_ends_the_wait_for_it(batch: Batch) -> None:
    task = batch.function(time.sleep, 60)
    waiting = asyncio.create_task(aio.result(task))
    await soon()
    task.cancel()
    with pytest.raises(TaskCancelledError):
        await waiting


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def test_two_loops_of_a_thread_await_results_of_one_pool() -> None:
    with Pool(2) as pool:
        first, second = pool.apply_async(nap, (0.8,)), pool.apply_async(nap, (0.2,))
        one, other = asyncio.new_event_loop(), asyncio.new_event_loop()
        waiting = one.create_task(aio.result(first))
        one.run_until_complete(asyncio.sleep(0.05))
        assert other.run_until_complete(aio.result(second)) == 0.2
        assert one.run_until_complete(waiting) == 0.8
        one.close()
        other.close()
