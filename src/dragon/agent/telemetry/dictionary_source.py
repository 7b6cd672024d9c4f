"""The shards of distributed dictionaries."""

from __future__ import annotations

from dragon.agent.telemetry.seen import Seen
from dragon.infrastructure.metrics import Sample, tags_of

__all__ = ["DictionarySource"]


class DictionarySource:
    """The shards on this node, including copies."""

    name = "the dictionaries"

    def read(self, seen: Seen) -> list[Sample]:
        """Return the used and allowed bytes and the number of keys of each shard."""
        samples = []
        for shard in seen.shards:
            tags = tags_of(dictionary=shard.dictionary, manager=shard.manager)
            samples.append(Sample("dictionary_bytes", shard.used, tags))
            samples.append(Sample("dictionary_limit", shard.limit, tags))
            samples.append(Sample("dictionary_keys", shard.keys, tags))
        return samples
