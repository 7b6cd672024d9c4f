"""Objects that several threads of a process use at once, and the GIL of a free-threaded interpreter."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from conftest import Site
from threads import PARTS

PROGRAM = Path(__file__).parents[1] / "threads.py"
WITHOUT_GIL = """
    import sys

    from dragon.native import Pool

    if __name__ == "__main__":
        with Pool(1) as pool:
            print(sys._is_gil_enabled(), pool.apply(sys._is_gil_enabled))
"""
# PYTHON_GIL=0 would keep the GIL off for LMDB's binding, in which threads then crash.
AS_USUAL = {"PYTHON_GIL": ""}


def test_threads_use_objects_at_once(site: Site) -> None:
    done = site.dragon(PROGRAM, "--rounds", "30", env=AS_USUAL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": done in ") == len(PARTS)


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this interpreter has a GIL")
@pytest.mark.parametrize("options", [[], ["--nodes", "2", "--no-label"]], ids=["one node", "two nodes"])
def test_programs_run_without_the_gil_and_agents_switch_it_on_without_a_warning(site: Site, options: list[str]) -> None:
    done = site.dragon(*options, site.write(WITHOUT_GIL), env=AS_USUAL)
    assert (done.stdout, done.stderr) == ("False False\n", "")
