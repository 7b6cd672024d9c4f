"""Large messages over UCX and over separate TCP connections: all arrive in order, and a lost node is
noticed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from typing import Any

import pytest

from conftest import Site

pytestmark = pytest.mark.timeout(100)
TRANSPORTS = ["tcp", "shm,tcp"]
THRESHOLD = 128 * 1024

PREAMBLE = """
    import json, os, random, sys, time
    from dragon.infrastructure.errors import NodeLostError
    from dragon.infrastructure.policy import Policy
    from dragon.native.process import Process
    from dragon.native.queue import Queue
    from dragon.runtime.run import this_run

    ELSEWHERE = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")

    def make_queue(answers):
        queue = Queue()
        answers.put((queue, this_run().agent.pid))
        time.sleep(1000)
"""
ECHO = """
    def echo(results):
        queue = Queue()
        results.put(queue)
        while (message := queue.get()) is not None:
            results.put(message)

    if __name__ == "__main__":
        sizes = json.loads(sys.argv[1])
        results = Queue()
        process = Process(echo, (results,), policy=ELSEWHERE)
        process.start()
        queue = results.get()
        sent = random.Random(7)
        for place, size in enumerate(sizes):
            queue.put((place, sent.randbytes(size)))
        expected = random.Random(7)
        for place, size in enumerate(sizes):
            assert results.get() == (place, expected.randbytes(size)), place
        # Asked for, instead of put: the answer to a request.
        queue.put(None)
        process.join()
        process = Process(make_queue, (results,), policy=ELSEWHERE)
        process.start()
        there, _ = results.get()
        data = expected.randbytes(3_000_000)
        there.put(data)
        assert there.get() == data
        print("all", len(sizes))
        process.kill()
"""
SIZES = [10, 2_000_000, 1000, THRESHOLD - 1, THRESHOLD, THRESHOLD + 1, 70_000, 5_000_000, 5, 400_000] * 4
LARGE = sum(size for size in SIZES if size >= THRESHOLD)


@pytest.fixture
def ucxx() -> None:
    pytest.importorskip("ucxx._lib.libucxx", reason="ucxx is not installed (extra rdma)")


def carried(err: str) -> list[tuple[int, int]]:
    """Return the bytes that each agent has sent and received over UCX, according to its log."""
    found = re.findall(r"UCX sent (\d+) bytes and received (\d+)", err)
    return [(int(sent), int(received)) for sent, received in found]


def echo(site: Site, transport: str, sizes: list[int], **environment: str) -> list[tuple[int, int]]:
    program = site.write(PREAMBLE + ECHO)
    options = ("--nodes", "2", "--transport", transport, program, json.dumps(sizes))
    done = site.dragon(*options, env={"DRAGON_LOG_LEVEL": "INFO", **environment})
    assert done.stdout == f"all {len(sizes)}\n", done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    return carried(done.stderr)


@pytest.mark.usefixtures("ucxx")
@pytest.mark.parametrize("transports", TRANSPORTS)
def test_large_messages_go_over_ucx_and_arrive_in_order_among_small_ones(site: Site, transports: str) -> None:
    agents = echo(site, "ucx", SIZES, UCX_TLS=transports)
    assert len(agents) == 2
    assert agents[0] == agents[1][::-1]
    # With what is pickled around them some that are just too small are large enough, and there is the request's 3 MB.
    assert all(LARGE <= size < LARGE + 5_000_000 for agent in agents for size in agent)


@pytest.mark.usefixtures("ucxx")
def test_large_messages_go_over_tls_if_ucx_cannot_notice_a_lost_node(site: Site) -> None:
    # Shared memory cannot: UCX would end the agent that reads what a killed one had sent.
    agents = echo(site, "ucx", SIZES, UCX_TLS="shm")
    assert agents == [(0, 0), (0, 0)]


@pytest.mark.parametrize("transport", ["tcp", "plain"])
def test_large_messages_arrive_in_order_among_small_ones(site: Site, transport: str) -> None:
    echo(site, transport, SIZES)


@pytest.mark.usefixtures("ucxx")
def test_small_messages_do_not_use_ucx(site: Site) -> None:
    agents = echo(site, "ucx", [10, 100_000, THRESHOLD - 5000], UCX_TLS="tcp")
    # The request for one large message at the end is all there is.
    assert all(sent + received < 7_000_000 for sent, received in agents)
    assert len(agents) == 2


@pytest.mark.parametrize("transport", ["ucx by tcp", "ucx by shm,tcp", "tcp", "plain"])
def test_an_error_names_a_node_that_is_lost_during_large_messages(
    site: Site, transport: str, request: pytest.FixtureRequest
) -> None:
    transport, _, transports = transport.partition(" by ")
    if transport == "ucx":
        request.getfixturevalue("ucxx")
    source = """
    if __name__ == "__main__":
        results = Queue()
        Process(make_queue, (results,), policy=ELSEWHERE).start()
        queue, agent = results.get()
        data = os.urandom(4_000_000)
        queue.put(data)
        assert queue.get() == data
        print(json.dumps(agent), flush=True)
        try:
            while True:
                queue.put(data)
                if queue.qsize() > 5:
                    queue.get()
        except NodeLostError as error:
            print(error)
    """
    command = (sys.executable, "-m", "dragon", "--nodes", "2", "--transport", transport, site.write(PREAMBLE + source))
    process = site.start(*command, env={"UCX_TLS": transports})
    assert process.stdout is not None
    agent: Any = json.loads(process.stdout.readline())
    time.sleep(0.3)
    os.kill(agent, signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert "node-1" in out, out + err
    assert "lost" in out
    assert process.returncode == 0, err
    assert "Traceback" not in err


def test_an_error_says_how_to_install_ucxx_if_it_is_missing(site: Site) -> None:
    package = site.folder / "without" / "ucxx"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'ucxx'\")\n")
    path = os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH")]))
    done = site.dragon("--nodes", "2", "--transport", "ucx", site.write("print(1)"), env={"PYTHONPATH": path})
    assert done.returncode != 0
    assert done.stdout == ""
    assert "node-1: --transport ucx needs ucxx" in done.stderr or "node-0: --transport ucx needs ucxx" in done.stderr
    assert "pip install 'dragon-runtime[rdma]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("ucxx")
def test_an_error_names_a_node_whose_ucx_has_no_device(site: Site) -> None:
    done = site.dragon("--nodes", "2", "--transport", "ucx", site.write("print(1)"), env={"UCX_TLS": "carrier_pigeon"})
    assert done.returncode != 0
    assert re.search(r"node-\d: --transport ucx: UCX cannot be used: No such device", done.stderr), done.stderr
