"""CPython's own tests of multiprocessing pass with our start method; run.py says which, and what does not apply."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from conftest import Site


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("nodes", [(), ("--nodes", "2")], ids=["python", "two-nodes"])
def test_every_applicable_test_of_cpython_passes(site: Site, nodes: tuple[str, ...]) -> None:
    pytest.importorskip("test._test_multiprocessing", reason="this Python has no tests of its own installed")
    command = [sys.executable, Path(__file__).with_name("run.py"), *nodes, "--limit", "180"]
    done = site.run(*command, timeout=840)
    closing = re.search(r"(\d+) passed, (\d+) failed, \d+ skipped\s*$", done.stdout)
    assert closing is not None, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(closing[1]) > 200
