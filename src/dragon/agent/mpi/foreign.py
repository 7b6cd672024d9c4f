"""Environment variables by which a process would take itself for a rank of another job."""

from __future__ import annotations

import os

_FOREIGN = ("PMI_", "PMIX_", "PMI2_", "PALS_", "SLURM_", "OMPI_COMM_WORLD_", "HYDRA_", "HYDI_", "MPI_LOCAL", "PRTE_")
_KEPT = ("PMIX_MCA_", "PRTE_MCA_")


def is_foreign(name: str) -> bool:
    """Return whether it is such a variable; those that tune a library are not."""
    return name.startswith(_FOREIGN) and not name.startswith(_KEPT)


def without_foreign_variables(environment: dict[str, str | None]) -> dict[str, str | None]:
    """Return the changes to an environment that remove such variables (None means to remove)."""
    return {name: None for name in os.environ.keys() | environment.keys() if is_foreign(name)}
