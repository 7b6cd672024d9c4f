"""A channel compared with a deque: every message is received whole and in order."""

from __future__ import annotations

import gc
import math
import struct
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, Full
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import dragon.runtime.serialization  # noqa: F401  tells the core how to pickle
from dragon import _core

MIB = 2**20
# Around the largest message that is copied under the lock, the size classes with and without the head of a large
# message, a page, and the size from which copies are made without the GIL.
EDGES = [0, 1, 231, 232, 233, 447, 448, 449, 4031, 4032, 4033, 4096, 4097, 262143, 262144, MIB - 64, MIB - 63, MIB]


@pytest.fixture(autouse=True, scope="module")
def arena() -> Iterator[None]:
    own = not _core.has_arena()
    if own:
        _core.create_arena(256 * MIB)
    yield
    if own:
        gc.collect()
        _core.close_arena()


def same(left: Any, right: Any) -> bool:
    """Return whether both are equal and of the same type; NaN equals NaN, and 0.0 does not equal -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return bool(left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes())
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return len(left) == len(right) and all(k in right and same(v, right[k]) for k, v in left.items())
    return bool(left == right)


def pattern(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 0, -1]),
    st.floats(),
    st.text(st.characters(exclude_categories=()), max_size=300),
    st.binary(max_size=300),
)
arrays = st.builds(
    lambda dtype, shape, order: np.arange(math.prod(shape)).astype(dtype).reshape(shape, order=order),
    st.sampled_from(["u1", "i4", "f8", "c16", "U3", "?"]),
    st.lists(st.integers(0, 40), max_size=3).map(tuple),
    st.sampled_from("CF"),
)
things = st.one_of(
    plain,
    arrays,
    st.sampled_from(EDGES).map(pattern),
    st.sampled_from(EDGES).map(lambda size: bytearray(pattern(size))),
    st.recursive(
        plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner)
    ),
    st.lists(arrays, max_size=3),
)


class ChannelAndDeque(RuleBasedStateMachine):
    @initialize(capacity=st.integers(0, 5))
    def make(self, capacity: int) -> None:
        self.capacity = capacity
        self.channel = _core.Channel(capacity)
        self.expected: deque[Any] = deque()
        self.kept: list[tuple[Any, Any]] = []

    def is_full(self) -> bool:
        return 0 < self.capacity <= len(self.expected)

    @precondition(lambda self: not self.is_full())
    @rule(thing=things)
    def put(self, thing: Any) -> None:
        self.channel.put(thing)
        self.expected.append(thing)

    @precondition(lambda self: self.is_full())
    @rule(thing=things)
    def put_when_full(self, thing: Any) -> None:
        with pytest.raises(Full):
            self.channel.put_nowait(thing)
        with pytest.raises(Full):
            self.channel.put(thing, timeout=0.001)

    @precondition(lambda self: self.expected)
    @rule()
    def get(self) -> None:
        thing, expected = self.channel.get(timeout=10), self.expected.popleft()
        assert same(thing, expected)
        self.kept = [*self.kept[-5:], (thing, expected)]

    @precondition(lambda self: not self.expected)
    @rule()
    def get_when_empty(self) -> None:
        with pytest.raises(Empty):
            self.channel.get_nowait()
        with pytest.raises(Empty):
            self.channel.get(timeout=0.001)

    @rule()
    def write_into_what_was_received(self) -> None:
        """Write into a received array, which must not change any other message."""
        for i, (thing, _) in enumerate(self.kept):
            if isinstance(thing, np.ndarray) and thing.dtype == np.uint8 and thing.size:
                thing[...] = 255
                self.kept[i] = (thing, thing.copy())

    @invariant()
    def sizes_agree(self) -> None:
        assert self.channel._size() == len(self.expected)
        assert self.channel._full() == self.is_full()

    @invariant()
    def what_was_received_stays(self) -> None:
        assert all(same(thing, expected) for thing, expected in self.kept)


ChannelAndDeque.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, suppress_health_check=list(HealthCheck), derandomize=True
)
TestChannelAndDeque = ChannelAndDeque.TestCase


def test_a_channel_with_a_limit_of_bytes_is_full_after_one_message_of_any_size() -> None:
    channel = _core.Channel(mebibytes=3)
    for size in (10 * 2**20, 1000):
        for _ in range(2):
            channel.put(bytes(size))
            while not channel._full():
                channel.put_nowait(bytes(size))
            with pytest.raises(Full):
                channel.put(b"", timeout=0.001)
            while channel._size():
                channel.get()


def test_a_put_that_waits_for_space_continues_when_there_is_some() -> None:
    channel = _core.Channel(mebibytes=1)
    channel.put(bytes(2**20))
    with ThreadPoolExecutor(4) as pool:
        puts = [pool.submit(channel.put, number) for number in range(4)]
        assert channel.get() == bytes(2**20)
        assert sorted(channel.get(timeout=10) for _ in puts) == [0, 1, 2, 3]


@settings(max_examples=150, derandomize=True)
@given(st.lists(things, max_size=8))
def test_no_memory_stays_in_use_after_messages_were_received(sent: list[Any]) -> None:
    gc.freeze()  # what the tests have loaded by now takes long to look through
    before = _core.usage()["in_use"]
    channel = _core.Channel()
    for thing in sent:
        channel.put(thing)
    received = [channel.get(timeout=10) for _ in sent]
    assert same(received, sent)
    channel.put(sent)
    del channel, received
    gc.collect()
    gc.unfreeze()
    # The table of what this process is attached to takes a block when it is first needed.
    assert _core.usage()["in_use"] <= before + 1024


@pytest.mark.parametrize("size", EDGES)
def test_messages_with_sizes_at_the_limits_arrive_unchanged(size: int) -> None:
    channel = _core.Channel()
    data = pattern(size)
    for thing in (data, data.decode("latin-1"), np.frombuffer(data, np.uint8), bytearray(data)):
        channel.put(thing)
        assert same(channel.get(timeout=10), thing)
    channel._put_bytes(data, 0, size)
    assert channel._get_bytes(10) == data


def test_refused_objects_leave_no_blocks() -> None:
    channel = _core.Channel(1)
    gc.collect()
    before = _core.usage()["blocks"]
    with pytest.raises(TypeError):
        channel.put([bytes(5000), (x for x in "ab")])
    too_large = np.zeros(_core.usage()["limit"] + MIB, np.uint8)  # no memory until it is read
    with pytest.raises(MemoryError):
        channel.put(too_large)
    channel.put(1)
    with pytest.raises(Full):
        channel.put_nowait(bytes(5000))
    # Processes of tests before this one may still give back what they had.
    assert _core.usage()["blocks"] <= before + 1
    assert channel.get() == 1
    assert channel._size() == 0
