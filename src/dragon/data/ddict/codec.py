"""How keys and values become bytes and back: by the dictionary's own encoding, or by picklers of the program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dragon.shards.records import FOREIGN, Record, decode_key, encode_key, encode_value
from dragon.shards.shard import MISSING

__all__ = ["OWN", "Codec"]


@dataclass(frozen=True)
class Codec:
    """The picklers of a handle, which have dumps() and loads(); None for the dictionary's own encoding."""

    keys: Any = None
    values: Any = None

    def key(self, key: Any) -> bytes:
        """A key as it is stored."""
        return encode_key(key) if self.keys is None else FOREIGN + bytes(self.keys.dumps(key))

    def decoded(self, key: bytes) -> Any:
        """A key as it was put."""
        foreign = self.keys is not None and key.startswith(FOREIGN)
        return self.keys.loads(key[len(FOREIGN) :]) if foreign else decode_key(key)

    def record(self, value: Any) -> Record:
        """A value as it is stored."""
        return encode_value(value if self.values is None else self.values.dumps(value))

    def loaded(self, value: Any) -> Any:
        """A value as it was put, of what a shard read, which may be MISSING."""
        return value if self.values is None or value is MISSING else self.values.loads(value)


OWN = Codec()
"""Without picklers."""
