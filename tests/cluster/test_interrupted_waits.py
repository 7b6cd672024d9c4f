"""A wait for an object of another node loses no message and no lock if a signal handler's exception interrupts it."""

from __future__ import annotations

import pytest

from conftest import Site

PROGRAM = """
import os, signal, time

import numpy as np

from dragon.infrastructure.policy import Policy
from dragon.native import Lock, Process, Queue
from dragon.native.machine import System

NODES = [policy.host_name for policy in System().hostname_policies()]
THERE = Policy(placement=Policy.Placement.HOST_NAME, host_name=NODES[1])


def interrupted(wait, told):
    # Whether Ctrl-C interrupts the wait.
    told.put(os.getpid())
    try:
        wait()
    except KeyboardInterrupt:
        return True
    return False


def interrupt_with_reply(process, make_ready):
    # What the process waits for comes while it is stopped, and Ctrl-C as well.
    time.sleep(0.3)
    os.kill(process, signal.SIGSTOP)
    make_ready()
    time.sleep(0.5)
    os.kill(process, signal.SIGINT)
    os.kill(process, signal.SIGCONT)
"""


def run(site: Site, source: str) -> str:
    done = site.dragon("--nodes", "2", site.write(f"{PROGRAM}\n{source}"), timeout=120)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_message_that_comes_with_ctrl_c_is_got_later(site: Site, size: int) -> None:
    out = run(
        site,
        f"""
def get(queue, told):
    print(interrupted(queue.get, told), flush=True)
    print(queue.get(timeout=30).sum(), flush=True)
    queue.put("another")  # and not what came late
    print(queue.get(timeout=30), flush=True)


if __name__ == "__main__":
    queue, told = Queue(), Queue()
    process = Process(get, (queue, told), policy=THERE)
    process.start()
    interrupt_with_reply(told.get(), lambda: queue.put(np.ones({size})))
    process.join()
""",
    )
    assert out == f"True\n{float(size)}\nanother\n"


def test_a_lock_that_is_acquired_with_ctrl_c_is_released(site: Site) -> None:
    out = run(
        site,
        """
def acquire(lock, told):
    print(interrupted(lock.acquire, told), flush=True)
    told.get(timeout=60)


if __name__ == "__main__":
    lock, told = Lock(), Queue()
    lock.acquire()
    process = Process(acquire, (lock, told), policy=THERE)
    process.start()
    interrupt_with_reply(told.get(), lock.release)
    print(lock.acquire(timeout=30))
    told.put("end")
    process.join()
""",
    )
    assert out == "True\nTrue\n"
