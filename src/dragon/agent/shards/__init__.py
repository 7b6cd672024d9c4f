"""Shards of distributed dictionaries on this node: served, replicated to other nodes, persisted and restored."""
