"""Variables by which a process takes itself for a rank of a job that something else has started."""

from __future__ import annotations

import os

__all__ = ["is_foreign", "without_foreign_variables"]

_FOREIGN = ("PMI_", "PMIX_", "PMI2_", "PALS_", "SLURM_", "OMPI_COMM_WORLD_", "HYDRA_", "HYDI_", "MPI_LOCAL", "PRTE_")
_KEPT = ("PMIX_MCA_", "PRTE_MCA_")


def is_foreign(name: str) -> bool:
    """Whether that is such a variable; those that tune a library are not."""
    return name.startswith(_FOREIGN) and not name.startswith(_KEPT)


def without_foreign_variables(environment: dict[str, str | None]) -> dict[str, str | None]:
    """The changes that keep a process from taking itself for a rank of another job."""
    return {name: None for name in os.environ.keys() | environment.keys() if is_foreign(name)}
