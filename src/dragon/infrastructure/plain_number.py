"""Converts numbers of NumPy and other libraries, which are accepted in place of Python's own; and writes numbers."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection
from types import NoneType
from typing import Any


def in_units(size: float) -> str:
    """Return a number of bytes as text, such as "1.5 GiB"."""
    unit = "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"


def plain_number(value: Any) -> Any:
    """Return a number as an int or a float; any other object unchanged, for the caller to refuse."""
    kind = type(value)
    if kind in (int, float, bool, NoneType) or hasattr(kind, "__len__"):  # an array, also of one number
        return value
    if hasattr(kind, "__index__"):
        return operator.index(value)
    return float(value) if hasattr(kind, "__float__") else value


def listed(numbers: Collection[float]) -> str:
    """Return numbers as text such as "1, 2, 5-7"."""
    result: list[str] = []
    for _, run in itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        result.append(f"{members[0]}-{members[-1]}" if len(members) > 2 else ", ".join(str(m) for m in members))
    return ", ".join(result)
