"""Processes of this node: started by the zygote, kept in a registry, signalled, and followed to their ends."""
