"""Data in the memory of the run."""

from dragon.data.ddict.ddict import DDict

__all__ = ["DDict"]
