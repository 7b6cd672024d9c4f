"""Serialized names that were changed outside the run: attach() raises an error, and the run is not affected."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragon.channels import Channel, ChannelError
from dragon.infrastructure.errors import NotSupportedError
from dragon.managed_memory import DragonMemoryError, MemoryAlloc, MemoryPool
from dragon.native.barrier import Barrier
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.native.semaphore import Semaphore

REFUSED = (ValueError, ChannelError, DragonMemoryError, NotSupportedError)
TEXTS = {Queue: bytes, Semaphore: str, Barrier: str}
PATIENCE = 60


def read(queue: Queue, answer: Queue) -> None:
    answer.put(queue.get(timeout=PATIENCE))


@pytest.fixture(scope="module")
def objects() -> Iterator[dict[Any, Any]]:
    pool = MemoryPool(1 << 16)
    made = {Queue: Queue(), Semaphore: Semaphore(1), Barrier: Barrier(2), Channel: Channel(pool, 7), MemoryPool: pool}
    made[MemoryAlloc] = pool.alloc(512)
    yield made
    made[MemoryAlloc].free()


def goes_on(objects: dict[Any, Any]) -> None:
    """Check that the objects of the run are unchanged and that processes start."""
    queue, answer = objects[Queue], Queue()
    assert queue.empty()
    queue.put("still here")
    process = Process(target=read, args=(queue, answer))
    process.start()
    assert answer.get(timeout=PATIENCE) == "still here"
    process.join(PATIENCE)
    assert objects[Semaphore].get_value() == 1


def tried(attach: Callable[[], Any]) -> None:
    """Call attach() and close its result, unless it raises one of the expected errors."""
    try:
        found = attach()
    except REFUSED:
        return
    close = getattr(found, "close", None)
    if close is not None:
        close()


@pytest.mark.parametrize("role", [*range(1, 8), 127, 128, 254, 255])
def test_a_serialized_queue_with_an_unknown_role_is_refused(objects: dict[Any, Any], role: int) -> None:
    queue = objects[Queue]
    offset, generation, right, joinable = json.loads(queue.serialize())
    queue.put("kept")
    with pytest.raises(ValueError, match=f"role {role}"):
        Queue.attach(json.dumps([offset, generation, right | role, joinable]).encode())
    assert queue.get(timeout=PATIENCE) == "kept"


def test_the_run_works_after_unknown_roles(objects: dict[Any, Any]) -> None:
    goes_on(objects)


@pytest.mark.parametrize(
    "name", [[-1, 0, 0], [1 << 60, 0, 0], [0, 1 << 40, 0], [0, 0, -5], ["x", 0, 0], [1.5, 0, 0], []]
)
def test_serialized_names_with_invalid_numbers_are_refused(objects: dict[Any, Any], name: list[Any]) -> None:
    for kind, text in TEXTS.items():
        rest = {Queue: [False], Barrier: [name, name, 2]}.get(kind, [])
        whole = json.dumps([name, *rest] if kind is Barrier else [*name, *rest])
        with pytest.raises(ValueError, match=r"is not what serialize\(\) of a"):
            kind.attach(whole.encode() if text is bytes else whole)
    with pytest.raises(ChannelError):
        Channel.attach(msgspec.msgpack.encode([json.dumps([*name, False]).encode(), 1, 1, 1]))


def test_a_serialized_block_outside_its_memory_is_refused(objects: dict[Any, Any]) -> None:
    what, offset, node, size, words = msgspec.msgpack.decode(objects[MemoryAlloc].serialize())
    for wrong in ([-8, size], [offset, 1 << 40], [1 << 40, 8], [offset, -1]):
        with pytest.raises(DragonMemoryError):
            MemoryAlloc.attach(msgspec.msgpack.encode([what, wrong[0], node, wrong[1], words]))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_bytes_are_refused_or_attach_an_object(objects: dict[Any, Any], data: st.DataObject) -> None:
    for kind, thing in objects.items():
        whole = thing.serialize()
        raw = whole.encode() if isinstance(whole, str) else bytes(whole)
        if data.draw(st.booleans()):
            place = data.draw(st.integers(0, len(raw) - 1))
            changed = raw[:place] + data.draw(st.binary(max_size=3)) + raw[place + data.draw(st.integers(0, 3)) :]
        else:
            changed = data.draw(st.binary(max_size=40))
        if changed == raw:
            continue
        given_to = changed.decode("latin-1") if isinstance(whole, str) else changed
        tried(partial(kind.attach, given_to))


def test_the_run_works_after_random_bytes(objects: dict[Any, Any]) -> None:
    goes_on(objects)
