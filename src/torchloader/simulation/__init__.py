"""The same scheduler over events instead of processes."""
