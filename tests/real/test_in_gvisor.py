"""gVisor, the kernel in user space of many hosted notebooks and functions, which implements only a part of Linux."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from conftest import Site

PROGRAM = """
    import multiprocessing as mp

    import dragon
    from dragon.data.ddict import DDict
    from dragon.native.machine import System


    def work(dictionary, index):
        dictionary[index] = index * index


    if __name__ == "__main__":
        mp.set_start_method("dragon")
        dictionary = DDict(1, 1, 32 << 20)
        with mp.Pool(2) as pool:
            pool.starmap(work, [(dictionary, index) for index in range(4)])
        print(System().nnodes, sorted(dictionary.values()))
        dictionary.destroy()
"""


@pytest.fixture(scope="module")
def sandbox() -> list[str]:
    """The words before a command that runs in gVisor."""
    runsc = shutil.which("runsc")
    if runsc is None:
        pytest.skip("there is no runsc")
    command = [runsc, "--network=none", "--platform=ptrace", "do"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False, timeout=60)
    if tried.returncode != 0:
        pytest.skip(f"gVisor does not start here: {tried.stderr.strip()}")
    return command


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_program_runs_in_gvisor(site: Site, sandbox: list[str], nodes: int) -> None:
    command = [sys.executable, *(["-m", "dragon", "--nodes", "2"] if nodes == 2 else []), site.write(PROGRAM)]
    place = ["--cwd", site.folder, "env", f"XDG_RUNTIME_DIR={site.folder / 'r'}"]
    done = site.run(*sandbox, *place, *command, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"{nodes} [0, 1, 4, 9]\n"), done.stderr
