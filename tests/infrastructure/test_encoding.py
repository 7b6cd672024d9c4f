"""The encoding of messages between processes."""

from __future__ import annotations

from itertools import chain

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from dragon.infrastructure.messages import encode, joined

values = st.one_of(st.integers(0, 20), st.text(max_size=3), st.lists(st.booleans(), max_size=2))


@given(st.lists(st.lists(values, max_size=20), max_size=6))
@example([list(range(length)) for length in (0, 15, 16, 65_535, 65_536)])
def test_encoded_lists_are_joined_to_one_list(several: list[list[object]]) -> None:
    together = encode({"all": joined([encode(each) for each in several])})
    assert msgspec.msgpack.decode(together) == {"all": list(chain.from_iterable(several))}
