"""Encodes variables, arguments and paths for messages: they are bytes in the system, and messages are UTF-8."""

from __future__ import annotations

import os

_STANDS_FOR_BYTES = "\0"  # precedes text with one character for each byte; cannot occur in any text of the system


def sendable(text: str) -> str:
    """Return the text, in an encoded form if it is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _STANDS_FOR_BYTES + os.fsencode(text).decode("latin-1")
    return text


def restored(text: str) -> str:
    """Return the text that was passed to sendable()."""
    return os.fsdecode(text[1:].encode("latin-1")) if text.startswith(_STANDS_FOR_BYTES) else text


def readable(text: str) -> str:
    """Return the text with escapes for what is not UTF-8."""
    return text.encode(errors="backslashreplace").decode()
