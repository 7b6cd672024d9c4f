"""A process's view of the runtime: its run, the handles of shared objects, serialisation, starting processes."""

import dragon.infrastructure  # noqa: F401  which imports msgspec, before a module here does
