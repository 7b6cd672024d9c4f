"""A run in a terminal: its nodes, devices, processes, queues and pools, as tables that are updated while it runs."""
