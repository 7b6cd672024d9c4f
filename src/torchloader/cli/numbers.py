"""Numbers on a command line, refused by argparse where they cannot be meant."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable

__all__ = ["at_least", "not_negative", "parts", "positive", "rising"]

_MOST = 1e9  # seconds are thirty years then; far beyond, times do not go on when seconds are added to them
_LEAST = 1e-6  # far below, what is divided by it is more than that


def at_least(least: int) -> Callable[[str], int]:
    """A whole number, of at least so much."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise ArgumentTypeError(f"must be a whole number of at least {least}, not {text}")
        return number

    return read


def positive(most: float = _MOST) -> Callable[[str], float]:
    """A number above 0, by a millionth at least, and no larger than `most`."""
    return _number(lambda number: _LEAST <= number <= most, f"a number from {_LEAST:f} to {most:.0f}")


def parts(count: int) -> Callable[[str], tuple[float, ...]]:
    """So many numbers from 0 on, with commas between them, and not all 0."""

    def read(text: str) -> tuple[float, ...]:
        try:
            found = tuple(map(float, text.split(",")))
        except ValueError:
            found = ()
        if len(found) != count or not all(0 <= each <= _MOST for each in found) or not sum(found) > 0:
            raise ArgumentTypeError(f"must be {count} numbers from 0 on, not all 0, such as 20,70,10, not {text}")
        return found

    return read


def rising(text: str) -> tuple[float, ...]:
    """Numbers above 0 with commas between them, each larger than the one before."""
    try:
        found = tuple(map(float, text.split(",")))
    except ValueError:
        found = (math.nan,)
    if not all(low < high <= _MOST for low, high in zip((0.0, *found), found, strict=False)):
        raise ArgumentTypeError(f"must be numbers above 0 that rise, such as 3600,36000, not {text}")
    return found


def _number(fits: Callable[[float], bool], told: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan  # which is in no range
        if not fits(number):
            raise ArgumentTypeError(f"must be {told}, not {text}")
        return number

    return read


not_negative = _number(lambda number: 0 <= number <= _MOST, f"a number from 0 to {_MOST:.0f}")
"""A number from 0 on."""
