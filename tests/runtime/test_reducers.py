"""Reducers that programs register with copyreg or with the pickler of multiprocessing."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler

import pytest

from dragon import cpython
from dragon.serialization import dumps, loads


class Wrapped:
    def __init__(self, value: int) -> None:
        self.value = value


def reduce_to(value: int) -> Callable[[Wrapped], tuple[type[Wrapped], tuple[int]]]:
    return lambda obj: (Wrapped, (value,))


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    yield
    copyreg.dispatch_table.pop(Wrapped, None)
    cpython.type_reducers().pop(Wrapped, None)


@pytest.mark.parametrize("register", [ForkingPickler.register, copyreg.pickle])
def test_the_reducer_that_was_registered_last_is_used(register: Callable[..., None]) -> None:
    for value in (1, 2, 3):
        register(Wrapped, reduce_to(value))
        assert loads(dumps(Wrapped(0))).value == value


def test_reducers_of_multiprocessing_have_precedence_over_those_of_copyreg() -> None:
    ForkingPickler.register(Wrapped, reduce_to(1))
    copyreg.pickle(Wrapped, reduce_to(2))  # type: ignore[arg-type]
    assert loads(dumps(Wrapped(0))).value == 1
