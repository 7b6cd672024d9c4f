"""The Slurm launcher in allocations of a real Slurm, with one controller and three daemons on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from conftest import Site
from peers.slurm import Slurm

OVER = Path(__file__).with_name("over.py")


def over(*command: str, wanted: str = "{}") -> list[str]:
    return [sys.executable, "-W", "error", str(OVER), wanted, '{"join_timeout": 30}', *command]


def test_a_run_under_salloc_uses_all_nodes_in_order(site: Site, slurm: Slurm) -> None:
    done = site.run("salloc", "-N3", *over("sh", "-c", "echo $INDEX: $NODES; exit 5"), env=slurm.environment)
    assert done.stdout == "0: n1 n2 n3\ncode 5\n", done.stderr


def test_a_run_can_use_a_part_of_an_allocation(site: Site, slurm: Slurm) -> None:
    done = site.run("salloc", "-N3", *over("sh", "-c", "echo $NODES", wanted='{"nodes": 2}'), env=slurm.environment)
    assert done.stdout == "n1 n2\ncode 0\n", done.stderr


def test_a_run_under_sbatch_uses_all_nodes(site: Site, slurm: Slurm) -> None:
    script = site.folder / "job.sh"
    words = " ".join(f"'{word}'" for word in over("sh", "-c", "echo $INDEX: $NODES"))
    script.write_text(f"#!/bin/sh\n{words}\n")
    done = site.run("sbatch", "--wait", "-N2", "--output", "job.out", script, env=slurm.environment)
    assert done.returncode == 0, done.stderr
    assert "0: n1 n2\ncode 0\n" in (site.folder / "job.out").read_text()


def test_a_run_can_start_beside_another_step_of_the_job(site: Site, slurm: Slurm) -> None:
    script = site.folder / "job.sh"
    words = " ".join(f"'{word}'" for word in over("sh", "-c", "echo $NODES"))
    script.write_text(f"#!/bin/sh\nsrun --overlap sleep 60 & other=$!\n{words}\nkill $other; wait\n")
    script.chmod(0o755)
    done = site.run("salloc", "-N2", script, env=slurm.environment)
    assert "n1 n2\ncode 0\n" in done.stdout, done.stderr


def test_the_error_about_a_failed_agent_has_its_output(site: Site, slurm: Slurm) -> None:
    done = site.run("salloc", "-N2", *over("true"), env={**slurm.environment, "STAND_IN": "/nonexistent.py"})
    assert "launch failed: srun ended with code 2" in done.stderr
    assert "can't open file" in done.stderr


def test_the_end_of_the_front_end_ends_the_step(site: Site, slurm: Slurm) -> None:
    process = site.start("salloc", "-N2", *over("sh", "-c", "echo ready; exec sleep 1"), env=slurm.environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for pid, command in site.processes():
        if "over.py" in command and "salloc" not in command:
            os.kill(pid, 9)
    process.communicate(timeout=60)
    site.assert_nothing_left()
