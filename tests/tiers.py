"""The tests of `make test` and the nightly ones, which `make test-all` runs too.

Nightly are those that take long, that draw at random what others show by example, and those of what few machines have.
Each promise of the documents has tests that are not nightly.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

__all__ = ["NIGHTLY", "pytest_addoption", "pytest_collection_modifyitems", "pytest_configure"]

# Files, folders or tests, by kind. A test belongs here if its id begins with one of them.
NIGHTLY: dict[str, tuple[str, ...]] = {
    "core and sanitizers": ("core/test_core.py", "core/test_faults.py", "core/test_stops.py"),
    "random programs": ("differential/test_differences.py::test_every", "differential/test_differences.py::test_whole"),
    "chaos": ("jepsen/", "fuzz/", "models/", "data/test_losses.py", "data/test_model.py"),
    "CPython's own tests": ("stdlib/test_stdlib.py::test_every_applicable_test_of_cpython_passes[two-nodes]",),
    "programs of others and frameworks": ("programs_of_others/", "torchloader/test_loader_frameworks.py"),
    "packages and the site": (
        "packages/test_distribution.py",
        "packages/test_wheels.py",
        "docs/test_site.py",
        "docs/test_commands.py",
    ),
    "peers": ("real/", "launcher/test_slurm.py", "launcher/test_ssh.py", "mpi/test_jobs.py", "mpi/test_launched.py"),
    "whole suites over two nodes": (
        "cluster/test_objects.py::test_processes_of_two_nodes",
        "cluster/test_objects.py::test_large",
        "cluster/test_runs.py::test_the_telemetry_example",
        "cluster/test_returning.py",
    ),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that divides the nightly tests."""
    parser.addoption("--part", metavar="K/N", help="of the nightly tests, those of part K of N parts")


def pytest_configure(config: pytest.Config) -> None:
    """Describe the mark."""
    config.addinivalue_line("markers", "nightly: not in make test; see tests/tiers.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the nightly tests, and deselect those of other parts. All tests of a file are of one part."""
    prefixes = tuple(f"tests/{prefix}" for prefixes in NIGHTLY.values() for prefix in prefixes)
    for item in items:
        if item.nodeid.startswith(prefixes):
            item.add_marker(pytest.mark.nightly)
    if config.option.part:
        part, parts = map(int, config.option.part.split("/"))
        others = [item for item in items if part_of(item.path, parts) != part and item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def part_of(path: Path, parts: int) -> int:
    """Return the number of the part, from 1, that has the nightly tests of a file."""
    return zlib.crc32(path.name.encode()) % parts + 1
