"""A time-out for an object of another node holds while that node's agent is stopped."""

from __future__ import annotations

from conftest import Site

PROGRAM = """
import os, queue, signal, threading, time
from pathlib import Path

from dragon.infrastructure.policy import Policy
from dragon.native import Event, Lock, Process, Queue, Semaphore
from dragon.native.machine import System

NODES = [policy.host_name for policy in System().hostname_policies()]
THERE = Policy(placement=Policy.Placement.HOST_NAME, host_name=NODES[1])
STOPPED_S = 20


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def make(told):
    told.put((Queue(), Queue(1), Lock(), Semaphore(0), Event(), parent_of(os.getppid())))
    time.sleep(600)


if __name__ == "__main__":
    told = Queue()
    maker = Process(make, (told,), policy=THERE)
    maker.start()
    messages, full, lock, semaphore, event, agent = told.get()
    full.put("first")
    waits = {
        "get": lambda: messages.get(timeout=1),
        "put": lambda: full.put("second", timeout=1),
        "acquire": lambda: lock.acquire(timeout=1),
        "acquire without waiting": lambda: lock.acquire(False),
        "semaphore": lambda: semaphore.acquire(timeout=1),
        "wait": lambda: event.wait(timeout=1),
        "join": lambda: maker.join(timeout=1),
    }
    os.kill(agent, signal.SIGSTOP)
    timer = threading.Timer(STOPPED_S, os.kill, (agent, signal.SIGCONT))
    timer.start()
    began = time.monotonic()
    for name, wait in waits.items():
        try:
            outcome = wait()
        except (queue.Empty, TimeoutError) as error:
            outcome = type(error).__name__
        print(name, outcome)
    print("in time", time.monotonic() - began < STOPPED_S)
    os.kill(agent, signal.SIGCONT)
    timer.cancel()
    try:
        full.put("third", timeout=1)
    except queue.Full:
        print("certainly not put")
    messages.put("after it")
    print(messages.get(timeout=30), full.get(timeout=30), lock.acquire(timeout=30))
    maker.kill()
"""


def test_the_first_operation_on_a_dictionary_ends_at_its_time_out_too(site: Site) -> None:
    source = (
        PROGRAM.partition("    full.put")[0]
        + """
    from dragon.data.ddict import DDict, DDictTimeoutError

    directory = DDict(1, 2, 2**27, timeout=1)
    key = next(key for key in range(1000) if directory.which_manager(key) not in directory.local_managers)
    os.kill(agent, signal.SIGSTOP)
    timer = threading.Timer(STOPPED_S, os.kill, (agent, signal.SIGCONT))
    timer.start()
    began = time.monotonic()
    for operation in (lambda: directory.__setitem__(key, 1), lambda: directory[key]):
        try:
            operation()
        except DDictTimeoutError:
            print("not in time", time.monotonic() - began < STOPPED_S)
    os.kill(agent, signal.SIGCONT)
    timer.cancel()
    directory[key] = 2
    print(directory[key])
    directory.destroy()
    maker.kill()
"""
    )
    done = site.dragon("--nodes", "2", site.write(source), timeout=120)
    assert (done.stdout, done.stderr) == ("not in time True\nnot in time True\n2\n", "")


AGAIN = """
if __name__ == "__main__":
    for _ in range(10):
        os.kill(agent, signal.SIGSTOP)
        time.sleep(0.05)  # until all its threads have stopped
        assert not lock.acquire(False)
        os.kill(agent, signal.SIGCONT)  # at the moment at which the request is cancelled
        assert lock.acquire(timeout=30)
        lock.release()
    maker.kill()
"""


def test_a_lock_that_is_granted_while_its_request_is_cancelled_is_released(site: Site) -> None:
    source = PROGRAM.partition("    full.put")[0] + AGAIN
    done = site.dragon("--nodes", "2", site.write(source), timeout=120)
    assert (done.stderr, done.returncode) == ("", 0)


def test_waits_for_objects_of_a_node_whose_agent_is_stopped_end_at_their_time_outs(site: Site) -> None:
    done = site.dragon("--nodes", "2", site.write(PROGRAM), timeout=120)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "get Empty",
        "put TimeoutError",
        "acquire False",
        "acquire without waiting False",
        "semaphore False",
        "wait False",
        "join None",
        "in time True",
        "certainly not put",
        "after it first True",
    ]


def test_a_wait_after_a_time_out_sleeps_most_of_the_time(site: Site) -> None:
    source = """
        import queue, resource, threading, time

        from dragon.infrastructure.policy import Policy
        from dragon.native import Process, Queue
        from dragon.native.machine import System

        def put_later(messages):
            time.sleep(5)
            messages.put("message")

        if __name__ == "__main__":
            there = System().hostname_policies()[1]
            messages = Queue(policy=there)
            try:
                messages.get(timeout=1.05)  # the answer comes less than a second before the deadline
            except queue.Empty:
                pass
            Process(put_later, (messages,), policy=there).start()
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            messages.get()
            print(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)
    """
    done = site.dragon("--nodes", "2", site.write(source), timeout=120)
    assert int(done.stdout) <= 30, done
