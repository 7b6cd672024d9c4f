"""Numbers of NumPy and other libraries, which count as Python's own wherever a number is asked for."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["plain_number"]


def plain_number(value: Any) -> Any:
    """The same number as an int or a float; what is none as it was given, for the caller to refuse."""
    kind = type(value)
    if kind in (int, float, bool) or hasattr(kind, "__len__"):  # an array, also of one number
        return value
    if hasattr(kind, "__index__"):
        return operator.index(value)
    return float(value) if hasattr(kind, "__float__") else value
