"""Native queues."""

from __future__ import annotations

import ast
import queue as standard
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dragon._core import DestroyedError
from dragon.infrastructure.policy import Policy, PolicyError
from dragon.native.machine import System
from dragon.native.process import Process
from dragon.native.queue import Queue, QueueError


def run(function: Any, *args: Any) -> Process:
    process = Process(function, args)
    process.start()
    return process


def relay(source: Queue, target: Queue) -> None:
    while (item := source.get()) is not None:
        target.put(item)


def get_for_ever(queue: Queue, ready: Queue) -> None:
    ready.put("ready")
    try:
        queue.get()
    except DestroyedError:
        ready.put("destroyed")


def test_objects_of_every_kind_go_through_another_process() -> None:
    there, back = Queue(), Queue()
    process = run(relay, there, back)
    objects = [0, -(2**63), 2**64, 1.5, True, "text", "\ud800", b"", bytes(10**6), [1, [2]], {"a": (1,)}, {1, 2}]
    for item in objects:
        there.put(item)
    there.put(None)
    received = [back.get(timeout=30) for _ in objects]
    assert received == objects
    assert [type(item) for item in received] == [type(item) for item in objects]
    process.join()


def test_a_queue_goes_through_a_queue() -> None:
    outer = Queue()
    outer.put(Queue())
    inner = outer.get()
    inner.put(1)
    assert inner.get() == 1


def test_full_and_empty_are_raised_at_once_or_after_a_timeout() -> None:
    queue = Queue(2)
    queue.put(1)
    queue.put(2)
    assert queue.full()
    assert queue.size() == queue.qsize() == 2
    for call in (lambda: queue.put_nowait(3), lambda: queue.put(3, timeout=0.01), lambda: queue.put(3, False)):
        with pytest.raises(standard.Full):
            call()
    assert [queue.get(), queue.get()] == [1, 2]
    assert queue.empty()
    assert not queue.poll(0.01)
    for call in (queue.get_nowait, lambda: queue.get(timeout=0.01), lambda: queue.get(False)):
        with pytest.raises(standard.Empty):
            call()


def test_threads_wait_for_several_queues_together() -> None:
    queues, one_is_ready, ready = [Queue(), Queue()], threading.Event(), list[Queue]()
    threads = [threading.Thread(target=queue.thread_wait, args=(None, one_is_ready, ready)) for queue in queues]
    for thread in threads:
        thread.start()
    queues[1].put("something")
    for thread in threads:
        thread.join(30)
    assert ready == [queues[1]]
    assert one_is_ready.is_set()


def test_thread_wait_returns_after_its_timeout() -> None:
    one_is_ready, ready = threading.Event(), list[Queue]()
    Queue().thread_wait(0.01, one_is_ready, ready)
    assert not ready
    assert not one_is_ready.is_set()


def test_arguments_about_streams_are_accepted_without_effect() -> None:
    for host in System().nodes:
        queue = Queue(2, policy=Policy(placement=Policy.Placement.HOST_ID, host_id=host), buffered=False, num_streams=3)
        queue.put("first", flush=True)
        queue.put("second", True, None, stream_channel=None)
        assert [queue.get(stream_channel=None), queue.get(True, 30.0, stream_channel=None)] == ["first", "second"]
        queue.put_nowait("third", stream_channel=None, flush=True)
        assert queue.get_nowait(stream_channel=None) == "third"


def test_put_waits_for_space() -> None:
    queue = Queue(1)
    queue.put(1)
    threading.Timer(0.05, queue.get).start()
    queue.put(2, timeout=30)
    assert queue.get() == 2


def test_join_waits_for_the_tasks_of_a_joinable_queue() -> None:
    queue = Queue(joinable=True)
    queue.put(1)
    queue.put(2)
    with pytest.raises(TimeoutError):
        queue.join(timeout=0.01)
    for _ in range(2):
        queue.get()
        queue.task_done()
    queue.join(timeout=30)
    with pytest.raises(ValueError, match="too many"):
        queue.task_done()
    with pytest.raises(QueueError):
        Queue().task_done()


def test_a_closed_handle_raises_an_error_and_other_handles_work() -> None:
    queue = Queue()
    other = Queue.attach(queue.serialize())
    queue.put(1)
    queue.close()
    assert queue.closed
    for call in (lambda: queue.put(1), queue.get, queue.size):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert other.get() == 1


def test_closing_a_queue_ends_the_waits_of_other_threads() -> None:
    for host in System().nodes:
        policy = Policy(placement=Policy.Placement.HOST_ID, host_id=host)
        queue = Queue(1, policy=policy)
        with ThreadPoolExecutor(2) as threads:
            getting, polling = threads.submit(queue.get), threads.submit(queue.poll, None)
            time.sleep(0.1)
            queue.close()
            with pytest.raises(EOFError, match="another thread closed this handle"):
                getting.result(30)
            with pytest.raises(ValueError, match="another thread closed this handle"):
                polling.result(30)
        next_one = Queue(policy=policy)  # which may lie where the other lay
        next_one.put("mine")
        assert next_one.get(timeout=30) == "mine"


def test_destroying_a_queue_ends_waits_with_an_error() -> None:
    queue, ready = Queue(), Queue()
    process = run(get_for_ever, queue, ready)
    assert ready.get(timeout=30) == "ready"
    time.sleep(0.05)
    queue.destroy()
    assert ready.get(timeout=30) == "destroyed"
    process.join()


def test_all_calls_to_a_destroyed_queue_raise_destroyed_error() -> None:
    for host in System().nodes:
        queue = Queue(joinable=True, policy=Policy(placement=Policy.Placement.HOST_ID, host_id=host))
        other = Queue.attach(queue.serialize())
        queue.put(1)
        queue.destroy()
        for handle in (queue, other):
            calls = (lambda q=handle: q.put(1), handle.get, handle.poll, handle.size, handle.full, handle.empty)
            for call in (*calls, handle.task_done, handle.join):
                with pytest.raises(DestroyedError, match=r"the queue made at \w+.py:\d+ was destroyed"):
                    call()
            handle.destroy()  # it is


@pytest.mark.parametrize("data", [b"nonsense", b"[1, 2]", "", 7])
def test_data_that_serialize_did_not_return_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"not what serialize\(\) of a queue gave"):
        Queue.attach(data)


def test_a_queue_without_handles_is_destroyed() -> None:
    queue = Queue()
    name = queue.serialize()
    queue.close()
    with pytest.raises(DestroyedError):
        Queue.attach(name)


def test_an_item_that_cannot_be_pickled_is_refused_at_the_call() -> None:
    queue = Queue()
    with pytest.raises(TypeError, match="pickle"):
        queue.put(threading.Lock())
    assert queue.empty()
    with pytest.raises(TypeError, match="maxsize"):
        Queue("many")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="stream"):
        Queue(num_streams=2)


def test_many_producers_and_consumers_lose_nothing() -> None:
    work, results, count = Queue(50), Queue(), 500
    producers = [run(_produce, work, n, count) for n in range(3)]
    consumers = [run(_consume, work, results) for _ in range(3)]
    for process in producers:
        process.join()
    for _ in consumers:
        work.put(None)
    got = [item for _ in consumers for item in results.get(timeout=30)]
    assert sorted(got) == sorted((n, i) for n in range(3) for i in range(count))
    for process in consumers:
        process.join()


def _produce(work: Queue, number: int, count: int) -> None:
    for i in range(count):
        work.put((number, i))


def _consume(work: Queue, results: Queue) -> None:
    got = []
    while (item := work.get()) is not None:
        got.append(item)
    results.put(got)


def test_a_queue_is_on_the_node_of_its_policy() -> None:
    hosts = System().nodes
    for index, host in enumerate(hosts):
        queue = Queue(5, joinable=True, policy=Policy(placement=Policy.Placement.HOST_ID, host_id=host))
        assert queue.node == index
        queue.put("here")
        assert (queue.get(timeout=30), queue.size()) == ("here", 0)
        queue.task_done()
        queue.join(timeout=30)
        queue.destroy()
    with pytest.raises(PolicyError, match="host id 1234"):
        Queue(policy=Policy(placement=Policy.Placement.HOST_ID, host_id=1234))


class Upside:
    """A custom pickler, with the methods of the module pickle for files."""

    @staticmethod
    def dump(obj: Any, file: Any) -> None:
        file.write(repr(obj).encode()[::-1])

    @staticmethod
    def load(file: Any) -> Any:
        return ast.literal_eval(file.read()[::-1].decode())


def put_and_say_when_done(queue: Queue) -> None:
    queue.put((1, "two"))
    queue.put_nowait({"three": 3})
    queue.join(timeout=30)
    queue.put("all done")


def test_a_queue_uses_a_custom_pickler() -> None:
    for host in System().nodes:
        policy = Policy(placement=Policy.Placement.HOST_ID, host_id=host)
        queue = Queue(5, joinable=True, policy=policy, pickler=Upside)
        process = run(put_and_say_when_done, queue)
        same = Queue.attach(queue.serialize(), pickler=Upside)
        assert [queue.get(timeout=30), same.get(timeout=30)] == [(1, "two"), {"three": 3}]
        queue.task_done()
        same.task_done()
        raw = Queue.attach(queue.serialize())
        assert raw.get(timeout=30) == b"'enod lla'"
        assert process.join() == 0
        with pytest.raises(standard.Empty):
            queue.get_nowait()
        queue.destroy()
    with pytest.raises(TypeError, match="a pickler has dumps and loads"):
        Queue(pickler=object())


def test_a_put_of_a_large_object_that_times_out_has_no_effect() -> None:
    queue = Queue(1)
    queue.put(bytes(2_000_000))
    for _ in range(3):
        with pytest.raises(standard.Full):
            queue.put(b"x" * 3_000_000, timeout=0.05)
    assert queue.get() == bytes(2_000_000)
    queue.put(b"y" * 1_000_000)
    assert queue.get() == b"y" * 1_000_000
    assert queue.empty()
