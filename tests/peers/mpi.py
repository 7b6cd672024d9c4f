"""Real MPI libraries, each in its own environment, into which `make mpi` installs MPICH and Open MPI from PyPI."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import Site

__all__ = ["Mpi", "for_own_mpi4py", "mpi", "mpich", "openmpi"]

ENVIRONMENTS = Path(sys.prefix) / "mpi"  # beside the packages of the environment that runs the tests
ALLTOALL = Path(__file__).parents[2] / "examples" / "mpi_workflow" / "alltoall.c"


@dataclass
class Mpi:
    """An MPI library, by its folder of programs."""

    name: str
    folder: Path

    @property
    def python(self) -> Path:
        """The path of a Python whose mpi4py uses this library."""
        return self.folder / "python"

    def compile_alltoall(self, target: Path, *options: str) -> None:
        """Compile the project's all-to-all benchmark with this library, into `target`."""
        strict = ["-Wall", "-Wextra", "-Werror"]
        subprocess.run([self.folder / "mpicc", *strict, "-o", target, ALLTOALL, *options], check=True)


def installed(name: str) -> Mpi:
    """Return the installed library of that name."""
    folder = ENVIRONMENTS / name / "bin"
    if not (folder / "python").exists():
        pytest.skip(f"there is no {name} in {ENVIRONMENTS} (make mpi)")
    return Mpi(name, folder)


def for_own_mpi4py(site: Site) -> dict[str, str]:
    """Return the variables with which mpi4py of the tests' own Python finds a library, by default the installed
    MPICH.
    """
    pytest.importorskip("mpi4py")
    if site.python("from mpi4py import MPI").returncode == 0:
        return {}
    return {"LD_LIBRARY_PATH": str(installed("mpich").folder.parent / "lib")}


@pytest.fixture(params=["mpich", "openmpi"])
def mpi(request: pytest.FixtureRequest) -> Mpi:
    """Provide MPICH, then Open MPI."""
    return installed(request.param)


@pytest.fixture
def mpich() -> Mpi:
    """Provide MPICH."""
    return installed("mpich")


@pytest.fixture
def openmpi() -> Mpi:
    """Provide Open MPI."""
    return installed("openmpi")
