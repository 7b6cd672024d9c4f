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
"""The puid of dragonhpc's global services. No process of a run has it."""

FIRST_PUID = 2**32
"""The puid of the first process of a run. A puid is never used twice in a run."""

PUID_NODE_SHIFT = 40
"""The number of bits of a puid below the index of the process's node."""


def node_of_puid(puid: int) -> int:
    """Return the index of the node of the process with this puid."""
    return (puid - FIRST_PUID) >> PUID_NODE_SHIFT


def default_pool_muid_from_index(index: int) -> int:
    """Return the `m_uid` of the memory of the node with that index, for objects that should be there."""
    return index


class PMIBackend(enum.StrEnum):
    """How the ranks of an MPI job find each other.

    Attributes:
        CRAY: the same as AUTO.
        PMIX: PMIx (Open MPI).
        PMI1: PMI-1 (MPICH and its family).
        LAUNCHER: the site's srun or mpiexec (Cray MPICH).
        AUTO: chosen by the MPI library of the program.
    """

    CRAY = "cray"
    PMIX = "pmix"
    PMI1 = "pmi1"
    LAUNCHER = "launcher"
    AUTO = "auto"

    @classmethod
    def from_str(cls, name: str | None) -> PMIBackend | None:
        """Return the backend of that name, in any case; None for None and "none". Raises ValueError for any
        other name."""
        if name is None or name.lower() == "none":
            return None
        try:
            return cls(name.lower())
        except ValueError:
            known = ", ".join(repr(one.value) for one in cls)
            raise ValueError(f"{name!r} is not a valid PMIBackend: there are {known}") from None
