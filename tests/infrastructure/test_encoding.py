"""The encoding of messages between processes."""

from __future__ import annotations

from itertools import chain

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from dragon import _core
from dragon.infrastructure.messages import Spawn, encode, joined
from dragon.infrastructure.start_request import StartRequest
from dragon.runtime.protocol.request import encode_request
from dragon.runtime.protocol.run import EndRun, KeepTracker
from dragon.runtime.run import frame

values = st.one_of(st.integers(0, 20), st.text(max_size=3), st.lists(st.booleans(), max_size=2))


@given(st.lists(st.lists(values, max_size=20), max_size=6))
@example([list(range(length)) for length in (0, 15, 16, 65_535, 65_536)])
def test_encoded_lists_are_joined_to_one_list(several: list[list[object]]) -> None:
    together = encode({"all": joined([encode(each) for each in several])})
    assert msgspec.msgpack.decode(together) == {"all": list(chain.from_iterable(several))}


packed = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=40) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner, max_size=20),
    max_leaves=30,
)


@given(packed)
def test_the_core_encodes_as_msgspec_decodes(value: object) -> None:
    assert msgspec.msgpack.decode(_core.pack(value)) == value


def test_requests_of_processes_and_of_agents_have_the_same_fields() -> None:
    defaults = {**vars(StartRequest), **vars(StartRequest())}
    of_agents = {"descriptor_variables"}  # for ranks of MPI jobs
    assert set(Spawn.__struct_fields__) - of_agents == StartRequest.__annotations__.keys() | vars(StartRequest()).keys()
    assert all(getattr(Spawn(), name) == defaults[name] for name in Spawn.__struct_fields__ if name in defaults)


def test_a_request_by_its_name_is_that_of_its_class() -> None:
    assert frame("EndRun") == encode_request(EndRun())
    assert msgspec.msgpack.decode(frame("KeepTracker", 7)[4:], type=KeepTracker) == KeepTracker(7)
