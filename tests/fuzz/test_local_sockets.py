"""Whatever this user's processes say on a run's sockets, the run goes on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conftest import Site
from fuzz.mutation import EXAMPLES

PROGRAM = Path(__file__).with_name("local_sockets.py")


@pytest.mark.timeout(300 + EXAMPLES)
@pytest.mark.parametrize("nodes", ["1", "2"])
@pytest.mark.parametrize("what", ["requests", "frames", "starts"])
def test_the_run_goes_on(site: Site, what: str, nodes: str) -> None:
    command = [sys.executable, "-m", "dragon", "--nodes", nodes, PROGRAM, what, str(EXAMPLES)]
    done = site.run(*command, timeout=240 + EXAMPLES, env={"PYTHONPATH": str(PROGRAM.parent.parent)})
    assert (done.returncode, done.stdout) == (0, "the run went on\n"), done.stderr
