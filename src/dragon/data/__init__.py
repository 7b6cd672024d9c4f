"""Data in the memory of the run."""

import dragon.infrastructure  # noqa: F401  which imports msgspec, before a module here does
from dragon.data.ddict.ddict import DDict

__all__ = ["DDict"]
