"""Programs that use third-party packages run unchanged."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from conftest import Site

FOLDER = Path(__file__).parent / "programs"
PYTHON = (sys.executable,)
DRAGON = (sys.executable, "-m", "dragon")
WAYS = {"python": PYTHON, "dragon": DRAGON, "two nodes": (*DRAGON, "--nodes", "2")}
LIMIT = 240
# As in an activated environment: Parsl starts scripts of its own.
SCRIPTS = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

# A program, the packages and scripts it needs, and what it prints.
PROGRAMS: dict[str, tuple[list[str], list[str]]] = {
    "academy_agents": (["academy"], ["agents done", "exchange done"]),
    "cubed_arrays": (["cubed"], ["product done", "sum done"]),
    "executorlib_tasks": (["executorlib"], ["single done", "blocks done", "dependencies done"]),
    "joblib_parallel": (["joblib", "numpy"], ["multiprocessing done", "loky done", "threading done"]),
    "loguru_enqueue": (["loguru"], ["file done", "context done"]),
    "optuna_studies": (["optuna"], ["file done", "database done"]),
    "parsl_executors": (["parsl", "interchange.py"], ["apps done", "bash done"]),
    "pebble_pools": (["pebble"], ["tasks done", "time limit done", "worker ended with 3", "next worker done"]),
    "rhapsody_concurrent": (["rhapsody"], ["tasks done"]),
    "rhapsody_dragon": (["rhapsody"], ["tasks done", "failures done"]),
    "scikit_learn_search": (["sklearn"], ["multiprocessing done", "loky done"]),
    "stable_baselines_envs": (["stable_baselines3"], ["environments done", "training done"]),
    "torch_dataloader": (["torch"], ["map done", "iterable done", "error done"]),
    "tqdm_process_map": (["tqdm"], ["process_map done", "pool done", "executor done"]),
}


def is_installed(name: str) -> bool:
    """Return whether a package, or a script of a package, is installed."""
    if name.endswith(".py"):
        return shutil.which(name, path=SCRIPTS) is not None
    return importlib.util.find_spec(name) is not None


def test_every_program_is_listed() -> None:
    assert sorted(PROGRAMS) == sorted(path.stem for path in FOLDER.glob("*.py"))


# Each on two nodes, and on one in one of the two ways.
CASES = [(name, way) for number, name in enumerate(PROGRAMS) for way in ("two nodes", ("python", "dragon")[number % 2])]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_a_program_prints_the_expected_lines(site: Site, name: str, way: str) -> None:
    packages, lines = PROGRAMS[name]
    missing = [package for package in packages if not is_installed(package)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (extra peers)")
    # Stable-Baselines3 leaves a folder for logs among the temporary files.
    # Threads of PyTorch and BLAS wait for each other by computing.
    environment = {"PATH": SCRIPTS, "SB3_LOGDIR": str(site.folder / "logs"), "OMP_NUM_THREADS": "1"}
    done = site.run(*WAYS[way], FOLDER / f"{name}.py", timeout=LIMIT, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == lines, done.stderr
