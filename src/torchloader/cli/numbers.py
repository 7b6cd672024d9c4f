"""Types of numbers on a command line, which argparse rejects if they are out of range."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import TypeVar

_MOST = 1e9  # thirty years in seconds; for far larger times the addition of seconds would be rounded away
_LEAST = 1e-6  # dividing by far smaller numbers would exceed _MOST


Value = TypeVar("Value")


def _read(convert: Callable[[str], Value], fits: Callable[[Value], bool], expected: str) -> Callable[[str], Value]:
    def read(text: str) -> Value:
        try:
            value = convert(text)
            if fits(value):
                return value
        except ValueError:
            pass  # it is no number
        raise ArgumentTypeError(f"must be {expected}, not {text}")

    return read


def at_least(least: int) -> Callable[[str], int]:
    """Return a converter for whole numbers of at least `least`."""
    return _read(int, lambda number: number >= least, f"a whole number of at least {least}")


def positive(most: float = _MOST) -> Callable[[str], float]:
    """Return a converter for numbers from 0.000001 to `most`."""
    return _read(float, lambda number: _LEAST <= number <= most, f"a number from {_LEAST:f} to {most:.0f}")


not_negative = _read(float, lambda number: 0 <= number <= _MOST, f"a number from 0 to {_MOST:.0f}")
"""Convert a number from 0 on."""


rising = _read(
    lambda text: tuple(map(float, text.split(","))),
    lambda found: all(low < high <= _MOST for low, high in zip((0.0, *found), found, strict=False)),
    "numbers above 0 that rise, such as 3600,36000",
)
"""Convert comma-separated increasing numbers above 0."""
