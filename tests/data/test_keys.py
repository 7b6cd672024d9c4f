"""Keys that are equal in a dict are the same key of a dictionary, and no others."""

from __future__ import annotations

import datetime as dt
import enum
import pathlib
import uuid
from collections import namedtuple
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragon.data.ddict import DDict
from dragon.shards.records import decode_key, encode_key

Pair = namedtuple("Pair", "first second")  # a plain one, as programs have it
Text = type("Text", (str,), {})
Data = type("Data", (bytes,), {})
Moment = type("Moment", (dt.datetime,), {})
Number = enum.IntEnum("Number", {"ONE": 1, "TWO": 2})
Word = enum.StrEnum("Word", {"A": "a"})
Plain = enum.Enum("Plain", {"ONE": 1})

ZONES = [dt.UTC, *(dt.timezone(dt.timedelta(hours=hours)) for hours in (-5, -4, 2)), None]
ZONES += [ZoneInfo("America/New_York"), ZoneInfo("Europe/Berlin"), dt.timezone(dt.timedelta(0), "named")]
SMALL = [-2, -1, 0, 1, 2, 3, 10**30, 2**63]

numbers = st.sampled_from(
    [
        *SMALL,
        *map(float, SMALL),
        *map(Fraction, SMALL),
        *map(Decimal, SMALL),
        *(make(text) for text in ("0.5", "-0.5", "0.1", "1e30", "inf") for make in (float, Decimal)),
        *(Fraction(text) for text in ("1/2", "-1/2", "1/10", "1/3")),
        Decimal("0.10"),
        Decimal("1E+30"),
        Decimal("1E-400"),
        *map(Decimal, ("1E+999999", "10E+999998", "1E-999999", "-1E+999999")),
        Fraction(1, 10**400),
        -0.0,
        True,
        False,
        Number.ONE,
        Plain.ONE,
        1j,
        complex(-0.0, 1),
        complex(1, 0),
        complex(0.5, 2),
    ]
)
# NumPy's integers cannot be compared with Decimal: a TypeError.
scalars = st.sampled_from(
    [
        *(kind(number) for kind in (int, float, np.int64, np.float32, np.uint8, np.float64) for number in range(3)),
        *(kind(0.1) for kind in (float, np.float32, np.float64)),
        *(True, np.bool_(True), np.complex64(1j), 1j),
    ]
)
texts = st.sampled_from(
    ["a", Text("a"), np.str_("a"), Word.A, "", Text(""), "\ud800", b"a", Data(b"a"), memoryview(b"a")]
)
ranges = st.builds(range, st.integers(-3, 6), st.integers(-3, 6), st.sampled_from([-3, -1, 1, 2, 3, True]))
# Around the changes of the clocks in both zones, and at the ends of the calendar.
days = [dt.datetime(2024, 3, 10), dt.datetime(2024, 11, 3), dt.datetime(2024, 3, 31), dt.datetime(2024, 7, 1)]
hours = st.builds(
    lambda day, half, zone, fold: (day + dt.timedelta(minutes=30 * half)).replace(tzinfo=zone, fold=fold),
    st.sampled_from(days),
    st.integers(0, 16),
    st.sampled_from(ZONES),
    st.integers(0, 1),
)
ends = st.builds(
    lambda moment, zone: moment.replace(tzinfo=zone),
    st.sampled_from([dt.datetime.min, dt.datetime.max, dt.datetime.min + dt.timedelta(hours=2)]),
    st.sampled_from(ZONES[:5]),
)
times = st.builds(
    lambda hour, zone, fold: dt.time(hour, 30, tzinfo=zone, fold=fold),
    st.sampled_from([0, 1, 2, 3, 5, 22, 23]),
    st.sampled_from(ZONES),
    st.integers(0, 1),
)
others = st.sampled_from(
    [
        dt.date(2024, 3, 10),
        Moment(2024, 3, 10),
        Moment(2024, 3, 10, tzinfo=dt.UTC),
        dt.timedelta(hours=24),
        dt.timedelta(days=1),
        dt.timedelta(-1, 1, 1),
        *filter(None, ZONES),
        uuid.UUID(int=7),
        uuid.UUID(int=7, is_safe=uuid.SafeUUID.safe),
        pathlib.Path("a/b"),
        pathlib.PurePosixPath("a//b/."),
        pathlib.PureWindowsPath("A/b"),
        pathlib.PureWindowsPath("a\\B"),
        None,
        ...,
        int,
    ]
)
single = st.one_of(numbers, texts, ranges, hours, ends, times, others)
keys = st.recursive(
    single,
    lambda inner: st.one_of(
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.lists(inner, max_size=3).map(frozenset),
        st.lists(inner, max_size=2).map(tuple),
    ),
    max_leaves=4,
)


@pytest.mark.parametrize("kind", [numbers, scalars, texts, ranges, hours, ends, times, others, keys])
def test_keys_are_the_same_exactly_if_they_are_in_a_dict(kind: st.SearchStrategy[Any]) -> None:
    @given(kind, kind)
    def check(one: Any, other: Any) -> None:
        assert (encode_key(one) == encode_key(other)) == (other in {one: None})
        assert decode_key(encode_key(one)) == one
        assert encode_key(decode_key(encode_key(one))) == encode_key(one)

    check()


class Own(int):
    """Integers that are equal to nothing but their kind."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and int(self) == int(other)

    def __hash__(self) -> int:
        return hash((Own, int(self)))


# What is drawn seldom or cannot be compared with what is drawn.
PAIRS: list[tuple[Any, Any]] = [
    *((5, other) for other in (Own(5), 5 + 0j, 5 + 1j, Decimal("5.00"), np.uint8(5), np.timedelta64(5, "s"))),
    *((1, other) for other in (1.0, True, np.True_)),
    *((10**power, Decimal(f"1e{power}")) for power in (30, 400)),
    *((10**308, other) for other in (Decimal("1e999999999"), Fraction(10**308))),
    *((0.5, other) for other in (np.float32(0.5), Fraction(1, 2), Fraction(10**400, 3))),
    *((1 / 3, Fraction(1, 3)), (0.1, np.float32(0.1)), (0.1, Decimal("0.1")), (float("inf"), Decimal("inf"))),
    *(("text", np.str_("text")), ("text", Text("text")), (b"text", np.bytes_(b"text"))),
    *(((5, "text"), (np.int64(5), np.str_("text"))), (frozenset([2]), frozenset([Number.TWO]))),
]


def test_a_value_is_found_by_keys_that_are_equal_in_a_dict(ddict: DDict) -> None:
    for one, other in PAIRS:
        ddict[one] = 1
        assert (other in ddict) == (other in {one: None}), (one, other)
        ddict[other] = 2
        assert (ddict[one], len(ddict)) == ((2, 1) if other in {one: None} else (1, 2)), (one, other)
        ddict.clear()


def test_equal_keys_of_other_types_find_the_value(ddict: DDict) -> None:
    noon = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    ddict[noon] = "noon"
    assert ddict[noon.astimezone(ZoneInfo("America/New_York"))] == "noon"
    ddict[Pair(1, range(0, 3, 2))] = "pair"
    assert ddict[1.0, range(0, 4, 2)] == "pair"
    assert set(ddict) == {noon, (1, range(0, 3, 2))}


def test_integers_of_any_size_are_keys() -> None:
    large = 10**5000  # Python refuses to write so many decimal digits
    assert decode_key(encode_key(large)) == large
    assert encode_key(Fraction(large)) == encode_key(large) != encode_key(large + 1)
