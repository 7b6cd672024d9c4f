"""Converts keys and values to bytes and back, by the dictionary's own encoding or by picklers of the program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dragon.shards.records import FOREIGN, Record, decode_key, encode_key, encode_value
from dragon.shards.shard import MISSING

__all__ = ["OWN", "Codec"]


@dataclass(frozen=True)
class Codec:
    """The picklers of a handle, which have dumps() and loads(); None means the dictionary's own encoding.

    Attributes:
        keys: the pickler of keys.
        values: the pickler of values.
    """

    keys: Any = None
    values: Any = None

    def key(self, key: Any) -> bytes:
        """Return the encoded form of a key."""
        return encode_key(key) if self.keys is None else FOREIGN + bytes(self.keys.dumps(key))

    def decoded(self, key: bytes) -> Any:
        """Return the key of an encoded form."""
        foreign = self.keys is not None and key.startswith(FOREIGN)
        return self.keys.loads(key[len(FOREIGN) :]) if foreign else decode_key(key)

    def record(self, value: Any) -> Record:
        """Return the record of a value."""
        return encode_value(value if self.values is None else self.values.dumps(value))

    def loaded(self, value: Any) -> Any:
        """Return the value that was put, from the value that a shard returned, which may be MISSING."""
        return value if self.values is None or value is MISSING else self.values.loads(value)


OWN = Codec()
"""The codec without picklers."""
