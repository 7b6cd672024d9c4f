"""Fixed numbers and names of the runtime."""

from __future__ import annotations

import enum
import os

__all__ = [
    "DRAGON_BASE_DIR",
    "FIRST_PUID",
    "GS_PUID",
    "PUID_NODE_SHIFT",
    "PMIBackend",
    "default_pool_muid_from_index",
    "node_of_puid",
]

DRAGON_BASE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder of the package."""

GS_PUID = 1
"""The process id of dragonhpc's global services. Here no process has it."""

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

    @classmethod
    def from_str(cls, name: str | None) -> PMIBackend | None:
        """The backend of that name, in any case; None for None and "none". Raises ValueError for another name."""
        if name is None or name.lower() == "none":
            return None
        try:
            return cls(name.lower())
        except ValueError:
            known = ", ".join(repr(one.value) for one in cls)
            raise ValueError(f"{name!r} is not a valid PMIBackend: there are {known}") from None
