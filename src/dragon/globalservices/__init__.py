"""Look-ups and control by id: processes and nodes of the run."""

import dragon.infrastructure  # noqa: F401  which imports msgspec, before a module here does
