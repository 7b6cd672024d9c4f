"""A run continues after any input that processes of this user send to its sockets."""

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
def test_a_run_continues_after_invalid_input_to_its_sockets(site: Site, what: str, nodes: str) -> None:
    command = [sys.executable, "-m", "dragon", "--nodes", nodes, PROGRAM, what, str(EXAMPLES)]
    done = site.run(*command, timeout=240 + EXAMPLES, env={"PYTHONPATH": str(PROGRAM.parent.parent)})
    assert (done.returncode, done.stdout) == (0, "the run went on\n"), done.stderr


MALFORMED_OPERATIONS = """
import os, random
from dragon import _core
from dragon.infrastructure.policy import Policy
from dragon.native.queue import Queue
from dragon.runtime.handle import Channel

there = Queue(policy=Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1"))
here = Channel()
desk = Channel._attached(_core.desk())
choose = random.Random(1)
for size in range(2000):
    words = [choose.choice((0, 1, 2, 7, 15, 16, 256, os.getpid(), *here._name(), *there._name())) for _ in range(20)]
    data = b"".join(word.to_bytes(8, "little") for word in words)
    desk._put_bytes(data, 0, size % len(data))
there.put("goes on")
print(there.get(timeout=60))
"""


def test_malformed_operations_are_refused(site: Site) -> None:
    done = site.dragon("--nodes", "2", site.write(MALFORMED_OPERATIONS))
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
