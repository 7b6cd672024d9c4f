"""Queues without a limit, into which a process of another node puts faster than the network takes it."""

from __future__ import annotations

import pytest

from conftest import Site

PROGRAM = """
import asyncio, logging, logging.handlers, multiprocessing as mp, sys
import dragon
from dragon import aio
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System
from dragon.native.process import Process

COUNT = 10_000


def put_nowait(queue):
    for number in range(COUNT):
        queue.put_nowait(number)


def put_with_a_short_timeout(queue):
    for number in range(COUNT):
        queue.put(number, timeout=1e-6)


def log(queue):
    logger = logging.getLogger()
    logger.addHandler(logging.handlers.QueueHandler(queue))
    for number in range(COUNT):
        logger.warning("%d", number)


def await_puts(queue):
    async def put_all():
        for number in range(COUNT):
            await aio.Queue(queue).put(number)

    asyncio.run(put_all())


if __name__ == "__main__":
    mp.set_start_method("dragon")
    queue = mp.Queue()
    other = Policy(placement=Policy.Placement.HOST_ID, host_id=System().nodes[1])
    process = Process(globals()[sys.argv[1]], (queue,), policy=other)
    process.start()
    got = [queue.get() for _ in range(COUNT)]
    process.join()
    print([int(getattr(one, "msg", one)) for one in got] == list(range(COUNT)), process.returncode)
"""


@pytest.mark.parametrize("how", ["put_nowait", "put_with_a_short_timeout", "log", "await_puts"])
def test_an_unlimited_queue_of_another_node_is_never_full(site: Site, how: str) -> None:
    done = site.dragon("--nodes", "2", site.write(PROGRAM), how)
    assert (done.returncode, done.stdout) == (0, "True 0\n"), done.stderr
