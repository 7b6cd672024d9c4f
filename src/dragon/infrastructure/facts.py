"""Fixed numbers and names of the runtime."""

from __future__ import annotations

import enum

__all__ = ["FIRST_PUID", "PUID_NODE_SHIFT", "PMIBackend", "default_pool_muid_from_index", "node_of_puid"]

FIRST_PUID = 2**32
"""The process id, within a run, of the first process. Ids are never used twice in a run."""

PUID_NODE_SHIFT = 40
"""Above these bits a process id holds the index of the node that the process runs on."""


def node_of_puid(puid: int) -> int:
    """The index of the node that the process of this id runs on."""
    return (puid - FIRST_PUID) >> PUID_NODE_SHIFT


def default_pool_muid_from_index(index: int) -> int:
    """The `m_uid` of the memory of the node of that index: in which an object is to lie that a program makes."""
    return index


class PMIBackend(enum.StrEnum):
    """How the ranks of an MPI job find each other."""

    CRAY = "cray"
    PMIX = "pmix"
    PMI1 = "pmi1"
    LAUNCHER = "launcher"
    AUTO = "auto"
