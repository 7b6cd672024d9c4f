"""Tasks that depend on each other, and executors on which other libraries run theirs."""

import dragon.infrastructure  # noqa: F401  which imports msgspec, before a module here does
