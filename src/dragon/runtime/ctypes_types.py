"""Describes ctypes types that cannot be found by name, so that any pickler can send them."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_BASES: dict[str, Any] = {"structure": ctypes.Structure, "union": ctypes.Union}


def described(kind: Any) -> Any:
    """Return plain values that describe an array type, or a type made by a function or a main program; else the type
    itself."""
    if issubclass(kind, ctypes.Array):
        return "array", described(kind._type_), kind._length_
    for what, base in _BASES.items():
        if issubclass(kind, base) and (
            "<locals>" in kind.__qualname__ or kind.__module__ in ("__main__", "__mp_main__")
        ):
            fields = [(name, described(of), *bits) for name, of, *bits in kind._fields_]
            return what, kind.__name__, fields, getattr(kind, "_pack_", None)
    return kind


def undescribed(told: Any) -> Any:
    """Return the type that described() described."""
    if not isinstance(told, tuple):
        return told
    what, *rest = told
    if what == "array":
        return undescribed(rest[0]) * rest[1]
    name, fields, pack = rest
    own = getattr(sys.modules["__main__"], name, None)
    if isinstance(own, type) and issubclass(own, _BASES[what]) and described(own) == told:
        return own
    members = {} if pack is None else {"_pack_": pack}
    members["_fields_"] = [(field, undescribed(of), *bits) for field, of, *bits in fields]
    return type(_BASES[what])(name, (_BASES[what],), members)
