"""Shards of distributed dictionaries on this node: served, copied to other nodes, persisted and restored."""
