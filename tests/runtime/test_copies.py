"""Copies of shared memory of other nodes, with and without views, against a model of that memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragon.native.value import mirror_of
from dragon.runtime.copies import Copy

ELEMENTS = 24


class Far:
    """The memory of another node, and the sizes of what was written into it and read from it."""

    def __init__(self, size: int) -> None:
        self.memory = bytearray(size)
        self.written: list[int] = []
        self.read: list[int] = []

    def _read(self, start: int, size: int) -> bytes:
        self.read.append(size)
        return bytes(self.memory[start : start + size])

    def _write_parts(self, parts: list[tuple[int, bytes]]) -> None:
        for start, data in parts:
            self.memory[start : start + len(data)] = data
            self.written.append(len(data))


@pytest.fixture(params=["with NumPy", "without NumPy"])
def comparing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let copies be compared in both ways."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "without NumPy":
            patch.delitem(sys.modules, "numpy", raising=False)
        else:
            pytest.importorskip("numpy")
        yield


@pytest.mark.usefixtures("comparing")
@given(
    grain=st.sampled_from([1, 2, 3, 4, 8]),
    steps=st.lists(st.tuples(st.sampled_from(["view", "far"]), st.integers(0, ELEMENTS - 1), st.integers(1, 255))),
)
def test_what_is_changed_on_one_side_is_seen_on_the_other(grain: int, steps: list[tuple[str, int, int]]) -> None:
    far, model = Far(grain * ELEMENTS), bytearray(grain * ELEMENTS)
    copy = Copy(far, grain * ELEMENTS, grain)
    copy.have_views()
    for side, index, value in steps:
        (copy.memory if side == "view" else far.memory)[index * grain] = value
        model[index * grain] = value
        copy.refresh()
        assert copy.memory == far.memory == model


@pytest.mark.usefixtures("comparing")
def test_only_changed_elements_are_written() -> None:
    far = Far(800)
    copy = Copy(far, 800, 8)
    copy.have_views()
    copy.memory[16:17] = b"x"
    copy.memory[80:104] = bytes(range(1, 25))
    far.memory[88 + 24 : 96 + 24] = b"neighbor"
    copy.write_back()
    assert far.written == [8, 24]
    assert far.memory[112:120] == b"neighbor"
    copy.write_back()
    assert far.written == [8, 24]


def test_a_copy_without_views_is_read_as_it_is() -> None:
    far = Far(8)
    copy = Copy(far, 8, 8)
    far.memory[:] = b"12345678"
    copy.refresh()
    assert copy.memory == b"12345678"


def test_what_a_view_changes_while_the_copy_is_read_is_kept() -> None:
    class Slow(Far):
        def _read(self, start: int, size: int) -> bytes:
            found = super()._read(start, size)
            if copies:
                copies[0].memory[0] = 7  # another thread
            return found

    copies: list[Copy] = []
    far = Slow(4)
    copy = Copy(far, 4, 1)
    copy.have_views()
    copies.append(copy)
    far.memory[3] = 9
    copy.refresh()
    assert bytes(copy.memory) == bytes([7, 0, 0, 9])
    copy.write_back()
    assert bytes(far.memory) == bytes([7, 0, 0, 9])


_POSITIONS = st.integers(-ELEMENTS - 2, ELEMENTS + 2)
_SLICES = st.builds(slice, *[st.none() | _POSITIONS] * 2, st.sampled_from([None, 1, 2, -1]))


@given(steps=st.lists(st.tuples(_POSITIONS | _SLICES, st.booleans(), st.integers(1, 1000))))
def test_an_array_of_another_node_is_indexed_as_one_of_this_node(
    steps: list[tuple[int | slice, bool, int]],
) -> None:
    kind = ctypes.c_int * ELEMENTS
    far, model = Far(ctypes.sizeof(kind)), kind()
    array = mirror_of(kind, far)

    def step(on: ctypes.Array[ctypes.c_int], at: int | slice, assigns: bool, value: int) -> object:
        try:
            if not assigns:
                return on[at]
            on[at] = [value] * len(range(ELEMENTS)[at]) if isinstance(at, slice) else value  # type: ignore[call-overload]
        except IndexError as error:
            return str(error)
        return None

    for one in steps:
        assert step(array, *one) == step(model, *one)
        assert far.memory == bytes(model)


@pytest.mark.parametrize(("at", "elements"), [(5, 1), (-1, 1), (slice(2, 6), 4), (slice(-3, None), 3)])
def test_an_element_or_a_slice_is_read_and_written_alone(at: int | slice, elements: int) -> None:
    kind = ctypes.c_int * ELEMENTS
    far = Far(ctypes.sizeof(kind))
    array = mirror_of(kind, far)
    far.read.clear()
    array[at] = [7] * elements if isinstance(at, slice) else 7
    assert array[at] == ([7] * elements if isinstance(at, slice) else 7)
    assert far.read == [4 * elements] * 2
    assert sum(far.written) <= 4 * elements
