"""Fixed numbers and names of the runtime."""

from __future__ import annotations

import enum

__all__ = ["FIRST_PUID", "PMIBackend"]

FIRST_PUID = 2**32
"""The process id, within a run, of the first process. Ids are never used twice in a run."""


class PMIBackend(enum.StrEnum):
    """How the ranks of an MPI job find each other."""

    CRAY = "cray"
    PMIX = "pmix"
    PMI1 = "pmi1"
    AUTO = "auto"
