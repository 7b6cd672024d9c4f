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


NAMES_ANOTHER_NODE = """
from dragon.infrastructure.policy import Policy
from dragon.native.queue import Queue
from dragon.runtime.agent_client import ask
from dragon.runtime.protocol.objects import Operate, Operation

there = Queue(policy=Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1"))
name = there._name()
try:
    ask(Operate(Operation(name, "Queue", "qsize"), outgoing=name))
except ValueError as error:
    print(error)
there.put("goes on")
print(there.get(timeout=60))
"""


def test_a_request_whose_message_is_in_a_channel_of_another_node_is_refused(site: Site) -> None:
    done = site.dragon("--nodes", "2", site.write(NAMES_ANOTHER_NODE))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "node 0 was given an object of another node where one of its own is needed\ngoes on\n"
