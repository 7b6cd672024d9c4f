"""The tests of `make test` and the nightly ones, which `make test-all` runs too.

Nightly are those that take long, that draw at random what others show by example, that repeat over two nodes what
others show on one, and those of what few machines have. Each promise of the documents has tests that are not nightly.
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
        "simulation/test_control_plane.py::test_a_fault",
        "agent/test_links.py",
        "native/test_pool.py::test_workers_that_are_killed",
        "mpbridge/test_executor_deaths.py::test_an_executor_ends",
        "torchloader/papers/",
        "torchloader/test_tuner.py::test_the_found",
        "torchloader/training/test_training_session.py::test_a_run_with_pauses",
        "mpbridge/test_sentinels.py",
        "torchloader/test_assignments.py::test_every",
        "torchloader/test_loader_randomness.py::test_no_way",
        "torchloader/test_loader_shared.py::test_resizes",
        "torchloader/test_simulation.py::test_the_proportional",
        "torchloader/test_stream_assignments.py::test_random",
        "torchloader/test_tuner.py::test_auto_including",
        "torchloader/training/test_networks.py::test_every",
    ),
    "chaos": (
        "jepsen/",
        "data/test_losses.py",
        "data/test_model.py",
        "cli/test_live_runs.py::test_a_run_with_a_stopped",
        "cli/test_signals.py::test_a_program",
        "cli/test_signals.py::test_an_interrupt_of",
        "cli/test_signals.py::test_signals",
        "cluster/test_broken_connections.py",
        "cluster/test_descriptors.py",
        "cluster/test_fabric.py",
        "cluster/test_interrupted_waits.py",
        "cluster/test_last_messages.py",
        "cluster/test_locked_objects.py",
        "cluster/test_returning.py",
        "cluster/test_stopped_agents.py",
        "cluster/test_strangers.py",
        "promises/test_nothing_left.py::test_nothing_is_left_if_a_process_is_killed_at",
        "workflows/test_kills.py",
        "promises/test_program_end.py::test_a_waiting_daemon",
        "torchloader/test_auto.py::test_programs_share",
        "cluster/test_turns.py",
        "cluster/test_views.py",
        "torchloader/test_cluster.py::test_a_command",
        "torchloader/test_cluster.py::test_a_failed",
        "torchloader/test_cluster.py::test_a_job",
        "torchloader/test_cluster.py::test_a_paused_job_whose",
        "torchloader/test_cluster.py::test_a_profile",
        "torchloader/test_cluster.py::test_an_interrupted",
        "torchloader/test_cluster.py::test_jobs_continue",
        "torchloader/test_cluster.py::test_jobs_of",
        "torchloader/test_cluster.py::test_later",
        "torchloader/test_cluster.py::test_nodes",
        "torchloader/test_cluster.py::test_workers_that",
        "torchloader/test_loader_other_nodes.py::test_a_copy",
        "torchloader/test_loader_other_nodes.py::test_a_worker",
        "torchloader/test_loader_other_nodes.py::test_no_sample",
        "torchloader/test_loader_other_nodes.py::test_workers_start",
        "torchloader/test_masters.py",
        "torchloader/test_loader.py::test_all_workers",
        "torchloader/test_loader.py::test_many",
        "torchloader/test_loader.py::test_workers_that_start",
        "workflows/test_batch.py::test_a_killed_worker_loses_at",
        "workflows/test_batch.py::test_killed_clients",
    ),
    "resources that run short": (
        "cluster/test_growth.py",
        "cluster/test_pressure.py",
        "cluster/test_unlimited_queues.py",
        "promises/test_limit_of_processes.py",
        "promises/test_memory.py::test_messages",
        "mpbridge/test_limited_addresses.py",
        "data/test_checkpoints.py::test_a_run_that_is_killed",
        "telemetry/test_recording.py::test_a_full_disk_or",
        "cli/test_doctor.py::test_repeated",
        "cli/test_doctor.py::test_a_worker",
        "cli/test_doctor.py::test_a_socket",
        "data/test_forked_processes.py::test_forked_children",
    ),
    "details of systems and settings, beside those that the guides name": (
        "cli/test_completion.py",
        "cli/test_executing.py",
        "cli/test_machine_options.py",
        "launcher/test_control_breaks.py",
        "launcher/test_frontend.py",
        "mpbridge/test_inherited",
        "mpbridge/test_max_tasks_per_child.py",
        "mpbridge/test_pool_iterables.py::test_results",
        "mpbridge/test_shared_memory.py",
        "mpbridge/test_slow_readers.py",
        "mpbridge/test_what_a_system_takes.py",
        "native/test_leftovers.py",
        "runtime/test_by_value.py",
        "runtime/test_folder.py",
        "runtime/test_older_systems.py",
        "runtime/test_sweep.py",
        "torchloader/test_loader.py::test_a_batch_whose_sample_leaves",
        "torchloader/test_loader_samplers.py::test_loaders_whose",
        "torchloader/training/test_priors.py",
        "torchloader/test_loader_forked_workers.py",
        "torchloader/test_loader_memory.py",
    ),
    "CPython's own tests": ("stdlib/test_stdlib.py",),
    "whole suites over two nodes": (
        "cluster/test_objects.py::test_objects_of_another_node_can_be_awaited",
        "cluster/test_objects.py::test_processes_of_two_nodes",
        "cluster/test_objects.py::test_large",
        "cluster/test_runs.py::test_the_telemetry_example",
        "ai/test_collective_group.py::test_ranks_of_several",
        "data/test_dataset.py::test_workers_of_a_loader_read_a_dataset_on",
        "docs/test_gallery.py::test_each_program_prints",
    ),
    "programs of others and frameworks": (
        "programs_of_others/",
        "torchloader/test_loader_frameworks.py",
        "torchloader/test_live_benchmark.py",
        "torchloader/test_seed_workload.py::test_the_workload_finishes_on_simulated_nodes[whole",
        "agent/test_starting.py::test_packages_of_science",
        "workflows/test_batch.py::test_an_error_with_a_tensor",
        "workflows/test_batch.py::test_several_tasks_can_read",
    ),
    "packages and the site": (
        "packages/test_distribution.py",
        "packages/test_metadata.py::test_a_program_keeps_its_types",
        "packages/test_wheels.py",
        "docs/test_site.py",
        "docs/test_tutorials.py",
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
        if item.nodeid.startswith(prefixes) or _is_repeated_over_nodes(item):
            item.add_marker(pytest.mark.nightly)
    if config.option.part:
        part, parts = map(int, config.option.part.split("/"))
        others = [item for item in items if part_of(item.path, parts) != part and item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def _is_repeated_over_nodes(item: pytest.Item) -> bool:
    """Return whether a test runs on one node too, and this is its repetition over several; but for the seeds' programs
    and promises, and tests that are about nodes.
    """
    callspec = getattr(item, "callspec", None)
    if callspec is None or item.nodeid.startswith(("tests/cluster/", "tests/promises/", "tests/seeds/")):
        return False
    return any(
        str(value) == "2" if name == "nodes" else "--nodes" in value
        for name, value in callspec.params.items()
        if name == "nodes" or isinstance(value, str | list | tuple)
    )


def part_of(path: Path, parts: int) -> int:
    """Return the number of the part, from 1, that has the nightly tests of a file."""
    return zlib.crc32(path.name.encode()) % parts + 1
