"""Killed processes and lost nodes of a run over several nodes: errors name them, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from conftest import Site

PREAMBLE = """
    import json, os, signal, socket, subprocess, sys, time
    import dragon
    from dragon.infrastructure.errors import NodeLostError
    from dragon.infrastructure.policy import Policy
    from dragon.native.lock import Lock
    from dragon.native.machine import System
    from dragon.native.process import Process, ProcessTemplate
    from dragon.native.process_group import DragonUserCodeError, ProcessGroup
    from dragon.native.queue import Queue
    from dragon.runtime.nodes import run_nodes
    from dragon.runtime.run import this_run

    def parent_of(pid):
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])

    def on(node):
        return Policy(placement=Policy.Placement.HOST_NAME, host_name=f"node-{node}")

    def report(queue):
        pids = {"worker": os.getpid(), "zygote": parent_of(os.getpid()), "agent": this_run().agent.pid}
        queue.put((this_run().node, pids))

    def work(queue):
        subprocess.Popen(["sleep", "1000"])
        report(queue)
        time.sleep(1000)

    def hold(lock, queue):
        lock.acquire()
        work(queue)

    def make_queue(answers):
        queue = Queue()
        answers.put(queue)
        report(answers)
        time.sleep(1000)
"""


def start(site: Site, source: str, *options: str) -> tuple[subprocess.Popen[str], Any]:
    """Start a run over two nodes, and return it and the first line of its program's output."""
    process = site.start(sys.executable, "-m", "dragon", "--nodes", "2", *options, site.write(PREAMBLE + source))
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        pytest.fail("".join(process.communicate()))
    return process, json.loads(line)


WORKERS = """
    if __name__ == "__main__":
        queue = Queue()
        workers = [Process(work, (queue,), policy=on(node)) for node in range(2)]
        for worker in workers:
            worker.start()
        pids = dict(queue.get() for _ in workers)
        print(json.dumps({"head": os.getpid(), **pids}), flush=True)
        while True:
            time.sleep(1)
"""


@pytest.mark.parametrize("victim", ["head", "primary agent", "primary zygote", "front end"])
def test_a_run_ends_with_any_process_that_it_requires(site: Site, victim: str) -> None:
    process, pids = start(site, WORKERS)
    chosen = {
        "head": pids["head"],
        "primary agent": pids["0"]["agent"],
        "primary zygote": pids["0"]["zygote"],
        "front end": process.pid,
    }
    os.kill(chosen[victim], signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode != 0
    if victim != "front end":
        assert "Traceback" not in err
    if victim.startswith("primary"):
        assert "node-0" in err
    site.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_front_end_ends_the_run(site: Site, number: signal.Signals) -> None:
    process, _ = start(site, WORKERS)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode != 0
    site.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_agent_that_gets_a_signal_while_it_starts_is_reported_without_a_traceback(
    site: Site, number: signal.Signals
) -> None:
    run = site.start(sys.executable, "-m", "dragon", "--nodes", "2", site.write("print(1)"))
    while not list((site.folder / "r").rglob("hosts")):
        assert run.poll() is None
    for pid, command in site.processes():
        if "dragon node --join" in command:
            os.kill(pid, number)
    _out, err = run.communicate(timeout=60)
    assert "node-" in err  # which ended, or joined before and was lost again
    assert "Traceback" not in err


@pytest.mark.parametrize("victim", ["agent", "zygote"])
def test_a_wait_on_a_lost_node_raises_an_error_that_names_it(site: Site, victim: str) -> None:
    process, pids = start(
        site,
        """
    if __name__ == "__main__":
        answers = Queue()
        worker = Process(make_queue, (answers,), policy=on(1))
        worker.start()
        queue = answers.get()
        print(json.dumps(answers.get()[1]), flush=True)
        for wait in (queue.get, worker.join, lambda: queue.put(1)):
            try:
                wait()
            except NodeLostError as error:
                print(error)
        print([node.host_name for node in run_nodes()])
        try:
            Process(work, (answers,), policy=on(1)).start()
        except Exception as error:
            print(type(error).__name__, error)
    """,
    )
    os.kill(pids[victim], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    lines = out.splitlines()
    assert len(lines) == 5, out + err
    assert all("node-1" in line and "is lost" in line for line in lines[:3]), out
    assert lines[3] == "['node-0']"
    assert "node-1" in lines[4]
    assert process.returncode == 0
    assert "node-1" in err


def test_a_connection_of_a_lost_node_is_readable_and_raises_an_error_that_names_it(site: Site) -> None:
    process, pids = start(
        site,
        """
    import multiprocessing as mp
    from multiprocessing.connection import wait

    def make_pipe(answers):
        reader, writer = mp.Pipe(False)
        answers.put(reader)
        report(answers)
        time.sleep(1000)

    if __name__ == "__main__":
        mp.set_start_method("dragon")
        answers = Queue()
        Process(make_pipe, (answers,), policy=on(1)).start()
        reader = answers.get()
        assert wait([reader], 0) == []
        print(json.dumps(answers.get()[1]), flush=True)
        print(wait([reader], 30) == [reader])
        try:
            reader.recv()
        except NodeLostError as error:
            print(error)
    """,
    )
    os.kill(pids["agent"], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    readable, error = out.splitlines()
    assert readable == "True", out + err
    assert "node-1" in error
    assert "is lost" in error


def test_a_lock_is_released_if_its_holder_was_on_a_lost_node(site: Site) -> None:
    process, pids = start(
        site,
        """
    if __name__ == "__main__":
        queue, lock = Queue(), Lock()
        Process(hold, (lock, queue), policy=on(1)).start()
        print(json.dumps(queue.get()[1]), flush=True)
        print(lock.acquire(timeout=30))
    """,
    )
    os.kill(pids["agent"], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert out == "True\n", out + err


def test_acquiring_the_lock_of_a_killed_process_of_another_node_gives_a_warning(site: Site) -> None:
    process, warned = start(
        site,
        """
    import warnings

    def acquire(lock, queue):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            lock.acquire()
            queue.put([(os.path.basename(each.filename), str(each.message)) for each in caught])

    if __name__ == "__main__":
        queue, lock = Queue(), Lock()
        holder = Process(hold, (lock, queue))
        holder.start()
        queue.get()
        acquirer = Process(acquire, (lock, queue), policy=on(1))
        acquirer.start()
        holder.kill()
        print(json.dumps(queue.get()), flush=True)
        acquirer.join()
    """,
    )
    assert warned == [["program.py", "the lock was held by a process that died; it is recovered"]]
    assert process.communicate(timeout=60)[1] == ""


def test_a_group_reports_the_member_of_a_lost_node(site: Site) -> None:
    process, pids = start(
        site,
        """
    if __name__ == "__main__":
        queue = Queue()
        group = ProcessGroup()
        group.add_process(4, ProcessTemplate(work, (queue,)))
        group.init()
        group.start()
        print(json.dumps([queue.get() for _ in range(4)]), flush=True)
        try:
            group.join()
        except DragonUserCodeError as error:
            print(error)
    """,
    )
    agent = next(pids["agent"] for node, pids in pids if node == 1)
    os.kill(agent, signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert "node-1" in out, out + err
    assert "lost" in out


def test_members_of_a_lost_node_are_restarted_on_another_one(site: Site) -> None:
    process, pids = start(
        site,
        """
    if __name__ == "__main__":
        queue = Queue()
        group = ProcessGroup(restart=True)
        group.add_process(2, ProcessTemplate(work, (queue,)))
        group.init()
        group.start()
        print(json.dumps([queue.get() for _ in range(2)]), flush=True)
        print(queue.get(timeout=30)[0])
        group.stop_restart()
        group.kill()
        group.join()
    """,
    )
    os.kill(next(pids["agent"] for node, pids in pids if node == 1), signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert out == "0\n", out + err
    assert process.returncode == 0, err


@pytest.mark.parametrize(
    "pool",
    [
        "dragon.native.pool.Pool(2)",
        "dragon.native.pool.Pool(policy=one_on_each_node(), processes_per_policy=1)",
        "multiprocessing.get_context('dragon').Pool(2)",
    ],
)
def test_a_pool_continues_without_a_lost_node(site: Site, pool: str) -> None:
    process, pids = start(
        site,
        f"""
    import multiprocessing
    import dragon.native.pool
    from dragon.infrastructure.policy import Policy
    from dragon.native.machine import Node, System

    def one_on_each_node():
        hosts = [Node(node).hostname for node in System().nodes]
        return [Policy(placement=Policy.Placement.HOST_NAME, host_name=host) for host in hosts]

    if __name__ == "__main__":
        queue = Queue()
        pool = {pool}
        results = [pool.apply_async(work, (queue,)) for _ in range(2)]
        reported = dict(queue.get() for _ in results)
        print(json.dumps(reported), flush=True)
        while not any(result.ready() for result in results):
            time.sleep(0.01)
        lost = next(result for result in results if result.ready())
        try:
            lost.get()
        except Exception as error:
            print(type(error).__name__)
        os.kill(reported[0]["worker"], signal.SIGKILL)
        print(pool.map(abs, range(-3, 0)))
        pool.close()
        pool.join()
    """,
    )
    os.kill(pids["1"]["agent"], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert out == "WorkerLostError\n[3, 2, 1]\n", out + err
    assert "Traceback" not in err
    assert process.returncode == 0


def test_a_process_of_a_lost_node_has_the_exit_code_of_a_killed_one(site: Site) -> None:
    process, pids = start(
        site,
        """
    import multiprocessing

    if __name__ == "__main__":
        multiprocessing.set_start_method("dragon")
        queue = Queue()
        processes = [multiprocessing.Process(target=work, args=(queue,)) for _ in range(2)]
        for each in processes:
            each.start()
        print(json.dumps(dict(queue.get() for _ in processes)), flush=True)
        while len(multiprocessing.active_children()) == 2:
            time.sleep(0.01)
        gone = next(each for each in processes if not each.is_alive())
        gone.kill()
        print(gone.exitcode, gone.join())
        another = multiprocessing.Process(target=print, args=("another",))
        another.start()
        another.join()
        multiprocessing.active_children()[0].kill()
    """,
    )
    os.kill(pids["1"]["agent"], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert out == "-9 None\nanother\n", out + err
    assert process.returncode == 0, err


def test_the_error_of_a_process_placed_on_a_lost_node_names_the_node(site: Site) -> None:
    process, pids = start(
        site,
        """
    if __name__ == "__main__":
        queue = Queue()
        worker = Process(work, (queue,), policy=on(1))
        worker.start()
        identifier = run_nodes()[1].h_uid
        print(json.dumps(dict([queue.get()])), flush=True)
        while len(run_nodes()) == 2:
            time.sleep(0.01)
        by_name, by_id = Policy.Placement.HOST_NAME, Policy.Placement.HOST_ID
        named = [Policy(placement=by_name, host_name=name) for name in ("node-1", "node-2")]
        named += [Policy(placement=by_id, host_id=each) for each in (identifier, 1)]
        for policy in named:
            try:
                Process(work, (queue,), policy=policy).start()
            except Exception as error:
                print(type(error).__name__, error)
    """,
    )
    os.kill(pids["1"]["agent"], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    lost, unknown, lost_by_id, unknown_by_id = out.splitlines()
    assert lost.startswith("NodeLostError node-1 is lost: the connection to node-1 was closed"), out + err
    assert unknown.startswith("ProcessError process create failed: no node of this run is called 'node-2'"), out + err
    assert lost_by_id == lost
    assert unknown_by_id.startswith("ProcessError process create failed: no node of this run has the host id 1"), out


def test_a_resilient_program_is_restarted_on_the_remaining_nodes(site: Site) -> None:
    process, pids = start(
        site,
        """
    if __name__ == "__main__":
        if "DRAGON_RESILIENT_RESTART" in os.environ:
            print(len(run_nodes()), "again")
            sys.exit(0)
        queue = Queue()
        Process(work, (queue,), policy=on(1)).start()
        print(json.dumps(queue.get()[1]), flush=True)
        time.sleep(1000)
    """,
        "--resilient",
    )
    os.kill(pids["agent"], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert out == "1 again\n", out + err
    assert process.returncode == 0, err


def test_the_members_of_a_group_end_if_the_node_of_its_creator_is_lost(site: Site) -> None:
    process, _ = start(
        site,
        """
    def lead(queue):
        group = ProcessGroup()
        group.add_process(1, ProcessTemplate(work, (queue,), policy=on(0)))
        group.init()
        group.start()
        report(queue)
        time.sleep(1000)

    if __name__ == "__main__":
        queue = Queue()
        Process(lead, (queue,), policy=on(1)).start()
        pids = dict(queue.get() for _ in range(2))
        print(json.dumps(pids), flush=True)
        member = os.pidfd_open(pids[0]["worker"])
        os.kill(pids[1]["agent"], signal.SIGKILL)
        import select
        print(bool(select.select([member], [], [], 30)[0]))
    """,
    )
    assert process.communicate(timeout=60)[0] == "True\n"


@pytest.mark.parametrize("in_a_group", [False, True])
def test_starts_on_another_node_end_with_their_creator(site: Site, in_a_group: bool) -> None:
    source = f"""
    from dragon.globalservices import process

    if __name__ != "__main__":
        time.sleep(3)  # as the imports of a program may take, before its first process on a node

    def create(queue):
        report(queue)
        if {in_a_group}:
            group = ProcessGroup()
            group.add_process(1, ProcessTemplate(time.sleep, (1000,), policy=on(2)))
            group.init()
            group.start()
        else:
            Process(time.sleep, (1000,), policy=on(2)).start()
        time.sleep(1000)

    if __name__ == "__main__":
        queue = Queue()
        Process(create, (queue,), policy=on(1)).start()
        _, pids = queue.get(timeout=60)
        print(json.dumps(pids), flush=True)
        time.sleep(1)
        os.kill(pids["agent" if {in_a_group} else "worker"], signal.SIGKILL)
        next_one = Process(os.getpid, policy=on(2))
        next_one.start()
        next_one.join()
        end = time.monotonic() + 20
        living = lambda: [puid for puid in process.get_list() if process.query(puid).ecode is None]
        while len(living()) > 1 and time.monotonic() < end:
            time.sleep(0.1)
        print(len(living()), "lives")
    """
    process, _ = start(site, source, "--nodes", "3")
    out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("1 lives\n", 0), err


def test_nodes_that_were_not_yet_connected_to_a_lost_node_continue(site: Site) -> None:
    # Its program kills it as early as a program can; the others are about to ask it who belongs to the run.
    source = """
        agent=$(awk '/^PPid/ { print $2 }' /proc/$PPID/status)
        if [ -z "$DRAGON_RESILIENT_RESTART" ]; then kill -9 $agent; sleep 60; else hostname; fi
    """
    done = site.dragon("--nodes", "8", "--resilient", "--no-label", "sh", "-c", source)
    assert (done.returncode, done.stdout) == (0, "node-1\n"), done.stderr
    assert "node 0 (node-0) is lost" in done.stderr
    assert done.stderr.count("is lost") == 1
