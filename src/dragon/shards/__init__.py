"""One shard of a distributed dictionary: in memory, on disk, and what can be asked of it.

A dictionary's clients read and write the shards of their own node with it; the agents do with it what other nodes'
processes ask for, and keep copies.
"""
