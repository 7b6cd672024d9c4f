"""The framing of messages between the agent and its PMIx server: each is preceded by its size."""

from __future__ import annotations

from typing import Any

import msgspec

SIZE = 8  # bytes


def framed(message: Any) -> bytes:
    """Return a message preceded by its size."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(SIZE, "little") + data
