"""Types of numbers on a command line, which argparse rejects if they are out of range."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable

_MOST = 1e9  # thirty years in seconds; for far larger times the addition of seconds would be rounded away
_LEAST = 1e-6  # dividing by far smaller numbers would exceed _MOST


def at_least(least: int) -> Callable[[str], int]:
    """Return a converter for whole numbers of at least `least`."""

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
    """Return a converter for numbers from 0.000001 to `most`."""
    return _number(lambda number: _LEAST <= number <= most, f"a number from {_LEAST:f} to {most:.0f}")


def rising(text: str) -> tuple[float, ...]:
    """Convert comma-separated increasing numbers above 0."""
    try:
        found = tuple(map(float, text.split(",")))
    except ValueError:
        found = (math.nan,)
    if not all(low < high <= _MOST for low, high in zip((0.0, *found), found, strict=False)):
        raise ArgumentTypeError(f"must be numbers above 0 that rise, such as 3600,36000, not {text}")
    return found


def _number(fits: Callable[[float], bool], expected: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan  # which is in no range
        if not fits(number):
            raise ArgumentTypeError(f"must be {expected}, not {text}")
        return number

    return read


not_negative = _number(lambda number: 0 <= number <= _MOST, f"a number from 0 to {_MOST:.0f}")
"""Convert a number from 0 on."""
