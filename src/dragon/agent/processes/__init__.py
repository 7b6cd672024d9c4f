"""Processes of this node: started by the zygote, kept in a registry, signalled, and monitored to their ends."""
