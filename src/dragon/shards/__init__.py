"""One shard of a distributed dictionary: in memory, on disk, and the operations that it supports.

Clients of a dictionary read and write the shards of their own node with this package; agents use it to serve other
nodes' processes, and to keep replicas.
"""
