"""Variables, arguments and paths on their way to another process: a system has them as bytes, messages are UTF-8."""

from __future__ import annotations

import os

__all__ = ["readable", "restored", "sendable"]

_STANDS_FOR_BYTES = "\0"  # in front of a byte a letter; no system has this in any


def sendable(text: str) -> str:
    """The text, or what stands for it where it is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _STANDS_FOR_BYTES + os.fsencode(text).decode("latin-1")
    return text


def restored(text: str) -> str:
    """What sendable() was given."""
    return os.fsdecode(text[1:].encode("latin-1")) if text.startswith(_STANDS_FOR_BYTES) else text


def readable(text: str) -> str:
    """The text for people, with escapes for what is not UTF-8."""
    return text.encode(errors="backslashreplace").decode()
