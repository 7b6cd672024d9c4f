"""Waits for objects of another node that an exception of a signal handler interrupts: no message and lock is lost."""

from __future__ import annotations

import pytest

from conftest import Site

PROGRAM = """
import multiprocessing as mp, os, signal, time

import numpy as np

from dragon.infrastructure.policy import Policy
from dragon.native import Event, Lock, Process, Queue, Semaphore
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


def run(site: Site, source: str, warned: bool = False) -> str:
    done = site.dragon("--nodes", "2", site.write(f"{PROGRAM}\n{source}"), timeout=120)
    assert ("was held by a process that died" in done.stderr) if warned else done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_message_that_arrives_with_ctrl_c_is_received_later_in_its_order(site: Site, size: int) -> None:
    out = run(
        site,
        f"""
def get(queue, told):
    print(interrupted(queue.get, told), flush=True)
    print([int(queue.get(timeout=30)[-1]) for _ in range(3)], flush=True)
    queue.put("another")  # and not what came late
    print(queue.get(timeout=30), flush=True)
    for _ in range(4):
        queue.task_done()


if __name__ == "__main__":
    queue, told = Queue(joinable=True), Queue()
    process = Process(get, (queue, told), policy=THERE)
    process.start()
    interrupt_with_reply(told.get(), lambda: [queue.put(np.full({size}, number)) for number in range(3)])
    process.join()
    queue.join(timeout=30)
    print("all are done")
""",
    )
    assert out == "True\n[0, 1, 2]\nanother\nall are done\n"


def test_a_message_that_arrives_with_ctrl_c_is_put_back_into_a_full_queue(site: Site) -> None:
    out = run(
        site,
        """
def get(queue, told):
    print(interrupted(queue.get, told), flush=True)
    print([queue.get(timeout=30) for _ in range(3)], flush=True)


if __name__ == "__main__":
    queue, told = Queue(1), Queue()
    process = Process(get, (queue, told), policy=THERE)
    process.start()

    def fill():
        queue.put(0)
        queue.put(1)

    interrupt_with_reply(told.get(), fill)
    queue.put(2)
    process.join()
""",
    )
    assert out == "True\n[0, 1, 2]\n"


def test_bytes_of_a_pipe_that_arrive_with_ctrl_c_stay_in_their_order(site: Site) -> None:
    out = run(
        site,
        """
def receive(reader, told):
    print(interrupted(reader.recv_bytes, told), flush=True)
    print([reader.recv_bytes() for _ in range(3)], flush=True)


if __name__ == "__main__":
    mp.set_start_method("dragon")
    (reader, writer), told = mp.Pipe(duplex=False), Queue()
    process = Process(receive, (reader, told), policy=THERE)
    process.start()
    interrupt_with_reply(told.get(), lambda: [writer.send_bytes(each) for each in (b"a", b"b", b"c")])
    process.join()
""",
    )
    assert out == "True\n[b'a', b'b', b'c']\n"


@pytest.mark.parametrize("lock", ["Lock()", "Lock(recursive=True)", "Semaphore()"])
def test_a_lock_that_is_acquired_when_ctrl_c_arrives_is_released(site: Site, lock: str) -> None:
    out = run(
        site,
        f"""
def acquire(lock, told):
    print(interrupted(lock.acquire, told), flush=True)
    told.get(timeout=60)


if __name__ == "__main__":
    lock, told = {lock}, Queue()
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


def test_a_signal_handler_can_use_an_object_of_another_node_during_a_wait_for_one(site: Site) -> None:
    out = run(
        site,
        """
def get(queue, told, stop):
    signal.signal(signal.SIGUSR1, lambda *_: stop.set())
    told.put(os.getpid())
    print(queue.get(timeout=60), queue.qsize(), stop.is_set(), flush=True)


if __name__ == "__main__":
    queue, told, stop = Queue(), Queue(), Event()
    process = Process(get, (queue, told, stop), policy=THERE)
    process.start()
    waiting = told.get()
    time.sleep(0.3)
    os.kill(waiting, signal.SIGUSR1)
    print(stop.wait(30), flush=True)
    queue.put("message")
    process.join()
""",
    )
    assert out == "True\nmessage 0 True\n"


def test_a_process_that_was_killed_while_it_got_a_lock_does_not_release_it_for_its_next_holder(site: Site) -> None:
    out = run(
        site,
        """
from dragon.runtime.run import this_run


def report_agent(told):
    told.put(this_run().agent.pid)


def hold(lock, told, ended):
    told.put(os.getpid())
    lock.acquire()
    told.put("held")
    ended.wait()


if __name__ == "__main__":
    lock, told, ended = Lock(), Queue(), Event()
    lock.acquire()
    reporter = Process(report_agent, (told,), policy=THERE)
    reporter.start()
    agent = told.get()
    first, second = (Process(hold, (lock, told, ended), policy=THERE) for _ in range(2))
    first.start()
    killed = told.get()
    time.sleep(0.3)  # it waits before the second one
    second.start()
    told.get()
    time.sleep(0.3)
    # The agent of their node handles the death before the reply, which gives the lock to the dead one.
    os.kill(agent, signal.SIGSTOP)
    os.kill(killed, signal.SIGKILL)
    time.sleep(0.2)
    lock.release()
    time.sleep(0.5)
    os.kill(agent, signal.SIGCONT)
    print(told.get(timeout=30), lock.acquire(timeout=1))
    ended.set()
    second.join()
    print(lock.acquire(timeout=30))
""",
        warned=True,
    )
    assert out == "held False\nTrue\n"


@pytest.mark.parametrize("error", ["TimeoutError", "BlockingIOError", "ConnectionResetError", "EOFError"])
def test_an_exception_of_a_signal_handler_reaches_the_caller_whatever_its_class(site: Site, error: str) -> None:
    out = run(
        site,
        f"""
def raise_it(*_):
    raise {error}("mine")


if __name__ == "__main__":
    queue, lock, event = Queue(policy=THERE), Lock(), Event()
    sleeper = Process(time.sleep, (60,), policy=THERE)
    sleeper.start()
    signal.signal(signal.SIGALRM, raise_it)
    for wait in (sleeper.join, queue.get, lambda: queue.get(timeout=30), lambda: sleeper.join(30)) * 3:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            wait()
        except Exception as raised:
            assert (type(raised), *raised.args) == ({error}, "mine"), raised
        else:
            raise AssertionError("not interrupted")
    sleeper.kill()
    print("interrupted")
""",
    )
    assert out == "interrupted\n"
