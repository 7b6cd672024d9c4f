"""Objects as bytes, as the runtime sends them: lambdas and functions of the main program go too, large buffers beside
the rest, and a handle keeps its object alive."""

from __future__ import annotations

import pickle
from typing import Any

from dragon.runtime.announcing import mention, mentions
from dragon.runtime.serialization import dumps, loads
from dragon.runtime.unsendable import UNSENDABLE
from dragon.runtime.unsendable import explained as _explained

__all__ = ["UNSENDABLE", "Snapshot", "dumps", "explained", "loads"]


class Snapshot:
    """An object as it is now. Each time this is sent, who gets it has the object.

    Raises what pickling raises (UNSENDABLE). What the object refers to of a run lives as long as the snapshot.
    """

    def __init__(self, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        with mentions() as self._handles:
            self._data = dumps(value, buffers.append)
        self._buffers = [bytearray(buffer.raw()) for buffer in buffers]

    def same_as(self, other: object) -> bool:
        """Whether it is another snapshot, of an object in the same state."""
        return isinstance(other, Snapshot) and self._data == other._data and self._buffers == other._buffers

    def __reduce__(self) -> Any:
        for name, send in self._handles:
            mention(name, send)
        return loads, (self._data, [pickle.PickleBuffer(buffer) for buffer in self._buffers])


def explained(error: Exception, parts: dict[str, Any]) -> Exception:
    """The error of pickling, with the one of the parts that cannot be sent, by the name that the user knows it by."""
    reason = error.__context__ if isinstance(error.__context__, Exception) else error
    return _explained(parts, reason, dumps, parts)
