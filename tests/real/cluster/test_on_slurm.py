"""`dragon` in `salloc` and `sbatch` of a real Slurm of three nodes."""

from __future__ import annotations

import os
import re
import shlex
import signal
from pathlib import Path

import pytest

from conftest import Site
from peers import await_that, dragon, hear, hear_error, needs_agent
from peers.slurm import Slurm

PROGRAMS = Path(__file__).parent / "programs"
HELLO = PROGRAMS / "hello.py"
DOCUMENTED = Path(__file__).parents[2] / "seeds" / "programs"
IN_SALLOC = ["salloc", "--quiet", "-N3"]

pytestmark = needs_agent


def test_a_program_runs_on_all_nodes_in_sbatch(site: Site, slurm: Slurm) -> None:
    assert slurm.submit(site, HELLO) == ("COMPLETED 0:0", "head n1\nnodes n1 n2 n3\n")


def test_the_exit_code_of_the_program_is_that_of_the_job(site: Site, slurm: Slurm) -> None:
    assert slurm.submit(site, "sh", "-c", "exit 7") == ("FAILED 7:0", "")


def test_a_program_can_use_a_part_of_the_allocation(site: Site, slurm: Slurm) -> None:
    command = [*IN_SALLOC, *dragon("--nodes", "2", HELLO)]
    assert site.run(*command, env=slurm.environment).stdout == "head n1\nnodes n1 n2\n"


@pytest.mark.parametrize("name", ["0_dragon_pool", "1_dragon_process_group", "3_dragon_dictionary"])
def test_documented_programs_run_in_salloc(site: Site, slurm: Slurm, name: str) -> None:
    pytest.importorskip("numpy")
    done = site.run(*IN_SALLOC, *dragon(DOCUMENTED / f"{name}.py"), env=slurm.environment)
    assert done.returncode == 0, done.stderr
    if name == "3_dragon_dictionary":
        assert sorted(done.stdout.splitlines()[3:]) == sorted(f"key_{i} = {i}" for i in range(24))
    else:
        assert {f"host n{number}," for number in (1, 2, 3)} <= set(re.findall(r"host n\d,", done.stdout))


@pytest.mark.parametrize("asked", ["--gpus-per-task=1 --ntasks-per-node=2", "--ntasks-per-gpu=1 --gpus=4", "--gpus=4"])
def test_an_agent_has_all_gpus_of_its_node_with_any_option_for_gpus(site: Site, slurm: Slurm, asked: str) -> None:
    command = ["salloc", "--quiet", "-N2", *asked.split(), *dragon("sh", "-c", "echo $SLURM_STEP_GPUS")]
    done = site.run(*command, env=slurm.environment)
    assert (done.stdout, done.stderr) == ("0,1\n", "")


def test_an_agent_has_all_cpus_of_its_node_with_cpus_per_task(site: Site, slurm: Slurm) -> None:
    count = os.cpu_count() or 1
    words = dragon("sh", "-c", "echo $SLURM_CPUS_ON_NODE, $SLURM_CPUS_PER_TASK for a task")
    command = ["salloc", "--quiet", "-N2", f"--ntasks-per-node={count}", "--cpus-per-task=1", *words]
    done = site.run(*command, env={**slurm.environment, "SRUN_CPUS_PER_TASK": "1"})
    assert done.stdout == f"{count}, 1 for a task\n"


def test_more_nodes_than_the_allocation_has_are_an_error(site: Site, slurm: Slurm) -> None:
    done = site.run("salloc", "--quiet", "-N2", *dragon("--nodes", "3", "true"), env=slurm.environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("dragon: 3 nodes were requested; the allocation has 2: n[1-2]\n")


def test_a_program_runs_beside_another_step_of_the_job(site: Site, slurm: Slurm) -> None:
    script = site.write(
        f"""\
        #!/bin/sh
        srun --ntasks-per-node=1 --overlap sleep 600 &
        {shlex.join(dragon(HELLO))}
        kill $!
        wait
        """,
        "job.sh",
    )
    script.chmod(0o755)
    done = site.run(*IN_SALLOC, script, env=slurm.environment)
    assert done.stdout == "head n1\nnodes n1 n2 n3\n", done.stderr


def test_scancel_ends_all_processes_that_salloc_started(site: Site, slurm: Slurm) -> None:
    process = slurm.start(site, "sh", "-c", "echo ready; exec sleep 600")
    assert hear(site, process) == ["ready"]
    slurm.tell("scancel", "--me")
    process.communicate(timeout=60)
    assert process.returncode != 0
    site.assert_nothing_left()


def test_scancel_ends_all_processes_that_sbatch_started(site: Site, slurm: Slurm) -> None:
    started = site.folder / "started"
    script = slurm.script(site, "sh", "-c", f"touch {started}; exec sleep 600")
    site.run("sbatch", "-N3", "--output=job.out", script, env=slurm.environment)
    await_that(started.exists, "the program's start")
    slurm.tell("scancel", "--me")
    site.assert_nothing_left()


@pytest.mark.parametrize("to", [[], ["--batch"]], ids=["steps", "batch"])
def test_the_program_receives_the_warning_signal_of_slurm_and_continues(
    site: Site, slurm: Slurm, to: list[str]
) -> None:
    script = slurm.script(site, PROGRAMS / "warned.py")
    output = site.folder / "job.out"
    site.run("sbatch", "-N3", "--output=job.out", script, env=slurm.environment)
    await_that(lambda: output.exists() and "at work" in output.read_text(), "the program's start")
    slurm.tell("scancel", "--me", "--signal=USR1", *to)
    await_that(lambda: not slurm.leftovers(), "the end of the job", timeout=60)
    assert output.read_text() == "at work\nsaved\n"
    site.assert_nothing_left()


def test_the_loss_of_the_agent_of_a_node_is_reported(site: Site, slurm: Slurm) -> None:
    process = slurm.start(site, "sh", "-c", "echo ready; exec sleep 600")
    assert hear(site, process) == ["ready"]
    os.kill(agent_of(site, "n2"), signal.SIGKILL)
    hear_error(site, process, "node 1 (n2) is lost")
    await_that(lambda: site.kill("sleep"), "the program that the shell becomes")
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    # Slurm kills what is left of the lost task; where that includes whoever cleans up, the next run does it.
    assert site.python("import dragon.native as n; n.Queue().put(1)").returncode == 0


def agent_of(site: Site, name: str) -> int:
    """Return the process id of the agent of a node."""
    agents = [pid for pid, command in site.processes() if "dragon node --join" in command and "srun" not in command]
    return next(pid for pid in agents if f"SLURMD_NODENAME={name}\0" in Path(f"/proc/{pid}/environ").read_text())
