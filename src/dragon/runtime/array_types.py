"""Pickles types of ctypes arrays, such as `ctypes.c_int * 3`, by their parts, because they cannot be found by name.

Does not import ctypes, which few programs need.
"""

from __future__ import annotations

import functools
import operator
import sys
from typing import Any


def is_nameless(obj: Any) -> bool:
    """Return whether `obj` is an array type that its module does not have under its name."""
    return _is_array(obj) and getattr(sys.modules.get(obj.__module__), obj.__qualname__, None) is not obj


def reduce_type(kind: Any) -> Any:
    """Return the __reduce__() value of an array type."""
    return _whole, parts_of(kind)


def _is_array(kind: Any) -> bool:
    return type(kind).__name__ == "PyCArrayType"


def parts_of(kind: Any) -> tuple[Any, ...]:
    """Return the element's type and the lengths of the dimensions."""
    return (*parts_of(kind._type_), kind._length_) if _is_array(kind) else (kind,)


def _whole(*parts: Any) -> Any:
    return functools.reduce(operator.mul, parts)
