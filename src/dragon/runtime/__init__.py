"""A process's view of the runtime: its run, the handles of shared objects, serialisation, starting processes."""
