"""The commands of the documents, run as they stand there; those that are not are listed here with the reason."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Site
from peers import await_that
from peers.ray import RayCluster
from peers.slurm import Slurm
from peers.ssh import SshHosts

ROOT = Path(__file__).parents[2]
# In place of the programs of a user.
PROGRAMS = dict.fromkeys(
    ("train.py", "prog.py"),
    """\
import sys

from dragon.native import Pool

with Pool(2) as pool:
    pool.map(len, sys.argv)
print("trained")
""",
)
# Pages whose commands need nothing but those programs.
PLAIN = ["kubernetes.md", "nodes.md", "pbs.md", "processes.md", "telemetry.md", "torchloader/loader.md"]
SHOWN = ["first_steps.md", "install.md"]
WITH_PEERS = ["dictionary_tools.md", "ray.md", "slurm.md", "ssh.md", "troubleshooting.md", "tutorials/slurm.md"]

# The beginnings of commands that are not run, with the reason.
NOT_RUN = {
    r"make\b": "it runs these tests, or builds for minutes",
    r"(export LD_PRELOAD=.*)?pip install|\.venv/bin/pip": "it fetches packages",
    r"(UPDATE_PICTURES=1 )?(\.venv/bin/)?python -m pytest|python tests/": "it runs tests",
    r"PYTHONPATH=\.:tests (\.venv/bin/)?python -m simulation": "tests/simulation runs the same",
    r"docker|apptainer|kubectl|qemu|cmake|\./configure": "it needs what the machines of these tests lack",
    r"export (ASAN|TSAN)_OPTIONS|export LD_PRELOAD|dragon tests/threads.py": "it is for a build with a sanitizer",
    r"python benchmarks/|dragon --hostlist HOST1,HOST2 benchmarks/": "it measures for minutes",
    r"python -m http.server|dragon top|dragon dashboard": "it goes on until it is interrupted; tests/telemetry has it",
    r"dragon --transport ucx": "it needs UCX; tests/real/test_ucx.py has it",
    r"torchloader run|python -m torchloader.training.train|torchrun": "it trains for minutes; tests/torchloader has it",
    r"salloc -N 2|python3 (-i )?dl_scheduler|>>> run|torchloader report": "the same; its test_seed_workload.py has it",
}


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and text of each page."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        yield str(page.relative_to(ROOT / "docs")), page.read_text()
    for page in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]:
        yield str(page.relative_to(ROOT)), page.read_text()


def commands(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the commands of a page, each with its shown output, or None in blocks that show none. Scripts and the
    cells of notebooks are not among them.
    """
    for block in re.findall(r"^```(?:console|sh|bash)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if block.startswith("#!"):
            continue
        if re.search(r"^\$ ", block, re.MULTILINE):
            yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if command := re.sub(r"\s+#\s.*$", "", line).strip():
                yield command, None


def why_not_run(command: str) -> str | None:
    """Return the reason for which a command is not run, or None."""
    return next((reason for pattern, reason in NOT_RUN.items() if re.match(pattern, command)), None)


def follow(site: Site, page: str, environment: dict[str, str], edit: Callable[[str], str] = str) -> None:
    """Write the programs and scripts of a page and run its commands in order, as `edit` makes them.

    In shown output `…` matches anything, and a name of a run any other.
    """
    text = (ROOT / "docs" / page).read_text()
    named = r"^`(\w+\.\w+)`:\n\n```(?:python|py|sh)\n(.*?)```"
    of_a_cell = r'^Path\("(\w+\.\w+)"\)\.write_text\("""\n(.*?)"""\)$'
    for name, program in PROGRAMS.items():
        site.write(program, name)
    for pattern in (named, of_a_cell):
        for name, program in re.findall(pattern, text, re.DOTALL | re.MULTILINE):
            site.write(program, name)
    run = [(command, shown) for command, shown in commands(text) if why_not_run(command) is None]
    assert run
    for command, shown in run:
        done = site.run("sh", "-c", edit(command), env=with_commands(environment))
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if shown is not None:
            expected = ".*".join(map(re.escape, without_runs(shown).split("…")))
            assert re.fullmatch(expected, without_runs(done.stdout), re.DOTALL), f"{command}\n{done.stdout}"


def without_runs(output: str) -> str:
    """Replace the names of runs."""
    return re.sub(r"\b[0-9a-f]{6}\b", "RUN", output)


def with_commands(environment: dict[str, str]) -> dict[str, str]:
    """Add the package's commands to an environment's PATH."""
    return {**environment, "PATH": f"{Path(sys.executable).parent}:{environment.get('PATH', os.environ['PATH'])}"}


def job_script(page: str) -> str:
    """Return the script of a page that is submitted to a scheduler."""
    (script,) = re.findall(r"^```sh\n(#!.*?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    return str(script)


def test_each_command_is_run_or_has_a_reason_not_to_be() -> None:
    followed = {*PLAIN, *SHOWN, *WITH_PEERS}
    missing = [
        f"{page}: {command}"
        for page, text in pages()
        for command, _ in commands(text)
        if page not in followed and why_not_run(command) is None
    ]
    assert missing == []


@pytest.mark.parametrize("page", SHOWN)
def test_the_commands_of_a_page_print_the_shown_output(site: Site, page: str) -> None:
    follow(site, page, {})


@pytest.mark.parametrize("page", PLAIN)
def test_the_commands_of_a_page_succeed(site: Site, page: str) -> None:
    # What kubectl would be given is printed instead.
    follow(site, page, {"HOME": str(site.folder)}, lambda command: command.partition(" | kubectl")[0])


def test_the_commands_of_the_slurm_tutorial_print_the_shown_output(site: Site, slurm: Slurm) -> None:
    follow(site, "tutorials/slurm.md", slurm.environment)


@pytest.mark.parametrize("page", ["slurm.md", "install.md"])
def test_the_job_script_of_a_page_runs(site: Site, slurm: Slurm, page: str) -> None:
    site.write(PROGRAMS["train.py"], "train.py")
    site.write(job_script(page), "job.sh")
    (site.folder / "venv").symlink_to(sys.prefix)
    # The cluster has three nodes, and a job has the environment of its submitter.
    submit = (
        "sbatch --nodes=3 --output=out job.sh; while squeue --noheader --me | grep -q .; do sleep 0.1; done; cat out"
    )
    done = site.run("sh", "-c", submit, env=with_commands(slurm.environment))
    assert re.fullmatch(r"Submitted batch job \d+\ntrained\n", done.stdout), done.stdout


def test_the_commands_for_hosts_behind_ssh_succeed(site: Site, ssh_hosts: SshHosts) -> None:
    site.write("node1 # the first\nnode2\n", "hosts.txt")
    at_desk = " ".join(ssh_hosts.lan.at_desk())
    options = f"--ssh-config-path {ssh_hosts.configuration}"
    follow(site, "ssh.md", {}, lambda command: re.sub(r"^([\w-]+)", rf"{at_desk} \1 {options}", command))


def test_the_commands_for_a_ray_cluster_succeed(site: Site, ray_cluster: RayCluster) -> None:
    environment = {"HOME": str(site.folder), "RAY_ADDRESS": ray_cluster.address}
    follow(site, "ray.md", environment, lambda command: command.replace("10.0.0.1:6379", ray_cluster.address))


def test_the_commands_for_dictionaries_print_the_shown_output(site: Site) -> None:
    pytest.importorskip("pyarrow")
    program = site.write(
        """
        import sys

        import numpy as np

        from dragon.data import DDict

        weights = DDict(2, 2, 64 * 2**20, name="weights")
        for layer in range(20):
            weights[layer] = np.zeros(20_000)
        print("ready", flush=True)
        sys.stdin.readline()
        weights.destroy()
        """
    )
    process = site.start(sys.executable, "-m", "dragon", "--nodes", "2", program, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    run = name_of_run(site, process.pid)

    def edit(command: str) -> str:
        """Name the run, as other tests may have dictionaries of the same name at the same time."""
        return f"{command} {run}" if command.endswith(" ls") else f"{command} --run {run}"

    follow(site, "dictionary_tools.md", {}, edit)
    assert process.communicate("\n", timeout=60) == ("", "")


def test_the_commands_about_a_program_that_hangs_print_the_shown_output(site: Site) -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    (source,) = re.findall(r"^`hang.py`:\n\n```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    site.write(source, "hang.py")
    process = site.start("python", "hang.py", env=with_commands({}))
    run = name_of_run(site, process.pid)
    await_that(lambda: site.dragon("doctor", run).stdout.count("has waited") == 3, "that all wait")
    for command, shown in commands(text):
        if shown is None:
            continue  # these are shown with their output further below on the page
        done = site.run("sh", "-c", command.replace("0c1676", run), env=with_commands({}))
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        found = alike(done.stdout).splitlines()
        missing = [line for line in alike(shown).splitlines() if line not in [*found, "…"]]
        assert missing == [], f"{command}\n{done.stdout}"
    process.communicate(timeout=60)


def name_of_run(site: Site, owner: int) -> str:
    """Return the name of the run with this owner, once its agent has registered it."""
    listing = ("ps", str(owner), "--json")
    await_that(lambda: site.dragon(*listing).returncode == 0, "that the run is known")
    return str(json.loads(site.dragon(*listing).stdout)["run"]["run"])


def alike(output: str) -> str:
    """Leave out what differs from run to run: numbers, folders, and which process was the first."""
    return re.sub(r" +", " ", re.sub(r'"/.*/', '"', re.sub(r"0c1676|\b[0-9a-f]{6}\b|\d[\dx.:]*", "0", output)))
