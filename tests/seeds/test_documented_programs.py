"""Programs of published documents about dragonhpc run unchanged."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest

from conftest import Site

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(params=["python", "dragon"])
def command(request: pytest.FixtureRequest) -> list[str]:
    """The command that runs a program: `python` and `python -m dragon`."""
    return [sys.executable, *(["-m", "dragon"] if request.param == "dragon" else [])]


def test_a_group_of_four_processes_says_hello(site: Site, command: list[str]) -> None:
    done = site.run(*command, PROGRAMS / "hello_world_group.py")
    assert done.stdout.splitlines() == [f"hello from process {socket.gethostname()}!"] * 4, done.stderr


@pytest.mark.parametrize("quiet", [False, True])
def test_a_generator_and_a_consumer_exchange_numbers(site: Site, command: list[str], quiet: bool) -> None:
    name = "generator_consumer_sanitized.py" if quiet else "generator_consumer.py"
    done = site.run(*command, PROGRAMS / name)
    fed = re.findall(r"generator feeding (\d+) to consumer", done.stdout)
    results = re.findall(r"consumer computed result (\d+) from input (\d+)", done.stdout)
    assert len(results) == 5, done.stderr
    assert all(int(result) == 2 * int(value) for result, value in results)
    assert fed == ([] if quiet else [value for _, value in results])


def test_training_on_an_unknown_host_is_an_error_that_names_the_host(site: Site, command: list[str]) -> None:
    pytest.importorskip("torch")
    done = site.run(*command, PROGRAMS / "policy_pytorch.py")
    assert done.returncode == 1
    assert "pinoak0033" in done.stderr
    assert socket.gethostname() in done.stderr


def test_training_on_this_host_receives_its_data(site: Site, command: list[str]) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        source = (PROGRAMS / "policy_pytorch.py").read_text().replace("cuda", "cpu")
    else:
        source = (PROGRAMS / "policy_pytorch.py").read_text()
    program = site.write(source.replace("pinoak0033", socket.gethostname()))
    done = site.run(*command, program)
    assert re.search(r"Result: y = .* x\^3", done.stdout), done.stderr
    assert done.returncode == 0


def test_a_pool_runs_all_tasks(site: Site, command: list[str]) -> None:
    pytest.importorskip("numpy")
    done = site.run(*command, PROGRAMS / "0_dragon_pool.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"Hello from host {socket.gethostname()}") == 16
    assert done.stderr.count("one worker per CPU") == (0 if "GPU ID(s): 0" in done.stdout else 1)


def test_a_group_with_affinities_runs(site: Site, command: list[str]) -> None:
    done = site.run(*command, PROGRAMS / "1_dragon_process_group.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"Hello from host {socket.gethostname()}") == 4
    assert done.stderr.count("Warning") <= 1


def test_affinities_that_cannot_be_met_are_an_error_with_strict(site: Site) -> None:
    done = site.dragon("--strict", PROGRAMS / "1_dragon_process_group.py")
    assert done.returncode == 1
    assert "PolicyError" in done.stderr
    assert re.search(r"has no (CPUs|GPUs) .* \(there (is|are) ", done.stderr)


CONTENTS = sorted(f"key_{i} = {i}" for i in range(8))


def test_a_pool_fills_a_dictionary(site: Site, command: list[str]) -> None:
    done = site.run(*command, PROGRAMS / "3_dragon_dictionary.py")
    assert sorted(done.stdout.splitlines()[3:]) == CONTENTS, done.stderr


def test_pools_of_two_nodes_fill_a_dictionary(site: Site) -> None:
    done = site.dragon("--nodes", "2", PROGRAMS / "3_dragon_dictionary.py")
    assert sorted(done.stdout.splitlines()[3:]) == sorted(CONTENTS + [f"key_{i} = {i}" for i in range(8, 16)]), (
        done.stderr
    )


SHAPE = ("--nodes", "2", "--cpus", "32", "--gpus", "4")
PLACES = sorted(f"Hello from host node-{node}, GPU ID(s): {gpu}" for node in range(2) for gpu in range(4))


def test_a_group_runs_over_two_nodes_with_gpus(site: Site) -> None:
    done = site.dragon(*SHAPE, PROGRAMS / "1_dragon_process_group.py")
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("Hello")) == PLACES, done.stderr


def test_pools_run_over_two_nodes_with_gpus(site: Site) -> None:
    pytest.importorskip("numpy")
    done = site.dragon(*SHAPE, PROGRAMS / "0_dragon_pool.py")
    with_gpu = sorted(line for line in done.stdout.splitlines() if line.startswith("Hello") and line[-1].isdigit())
    assert with_gpu == sorted(2 * PLACES), done.stderr
    assert all(done.stdout.count(f"host node-{node}, GPU ID(s): No GPUs assigned") == 8 for node in range(2))
