"""The tests of `make test` and the nightly ones, which `make test-all` runs too.

Nightly are those that take long, that draw at random what others show by example, and those of what few machines have.
Each promise of the documents has tests that are not nightly.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

__all__ = ["NIGHTLY", "pytest_addoption", "pytest_collection_modifyitems", "pytest_configure"]

# Folders, files or tests, by kind. A test belongs here if its id begins with one of them.
NIGHTLY: dict[str, tuple[str, ...]] = {
    "the core with sanitizers, and processes that are killed within it": (
        "core/test_core.py",
        "core/test_faults.py",
        "core/test_stops.py",
    ),
    "random programs, random input and models": (
        "differential/test_differences.py::test_every",
        "differential/test_differences.py::test_whole",
        "fuzz/",
        "models/",
        "agent/test_links.py",
        "native/test_pool.py::test_workers_that_are_killed",
        "mpbridge/test_executor_deaths.py::test_an_executor_ends",
    ),
    "chaos": (
        "jepsen/",
        "data/test_losses.py",
        "data/test_model.py",
        "cli/test_signals.py::test_an_interrupt_of_the_group",
        "cluster/test_broken_connections.py",
        "cluster/test_descriptors.py",
        "cluster/test_fabric.py",
        "cluster/test_interrupted_waits.py",
        "cluster/test_last_messages.py",
        "cluster/test_returning.py",
        "cluster/test_stopped_agents.py",
        "cluster/test_strangers.py",
    ),
    "resources that run short": (
        "cluster/test_growth.py",
        "cluster/test_pressure.py",
        "cluster/test_unlimited_queues.py",
        "promises/test_limit_of_processes.py",
    ),
    "CPython's own tests": ("stdlib/test_stdlib.py",),
    "whole suites over two nodes": (
        "cluster/test_objects.py::test_objects_of_another_node_can_be_awaited",
        "cluster/test_objects.py::test_processes_of_two_nodes",
        "cluster/test_objects.py::test_large",
        "cluster/test_runs.py::test_the_telemetry_example",
        "docs/test_gallery.py::test_each_program_prints_the_shown_output[2-",
    ),
    "programs of others and frameworks": (
        "programs_of_others/",
        "torchloader/test_loader_frameworks.py",
        "torchloader/test_live_benchmark.py",
        "agent/test_starting.py::test_packages_of_science",
    ),
    "packages and the site": (
        "packages/test_distribution.py",
        "packages/test_metadata.py::test_a_program_keeps_its_types",
        "packages/test_wheels.py",
        "docs/test_site.py",
    ),
    "what needs another program, such as Slurm, MPI or a browser": (
        "real/",
        "docs/test_commands.py",
        "launcher/test_ray.py",
        "launcher/test_slurm.py",
        "launcher/test_ssh.py",
        "mpi/test_jobs.py",
        "mpi/test_launched.py",
        "telemetry/test_page_questions.py",
        "telemetry/test_pictures.py",
        "telemetry/test_prometheus_server.py",
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
