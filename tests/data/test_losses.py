"""Dictionaries with killed processes, lost nodes and broken connections: no acknowledged write is lost or torn."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import Site

PROGRAMS = Path(__file__).parent / "programs"
of_root = pytest.mark.skipif(
    os.getuid() != 0, reason="a rehearsed node of a user without privileges may not break the connections of another"
)


@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000), killed=st.integers(0, 2))
def test_no_write_is_lost_or_torn_when_processes_and_nodes_are_killed(site: Site, seed: int, killed: int) -> None:
    done = site.dragon("--nodes", "4", PROGRAMS / "losses.py", str(seed), str(killed), timeout=100)
    assert (done.returncode, done.stdout) == (0, "nothing lost\n"), done.stderr


def test_processes_of_two_nodes_agree_with_a_model_of_checkpoints(site: Site) -> None:
    done = site.dragon("--nodes", "2", PROGRAMS / "checkpointed.py", "10", "60", timeout=100)
    assert (done.returncode, done.stdout) == (0, "the model agrees\n"), done.stdout + done.stderr


@of_root
@pytest.mark.parametrize(("nodes", "replicas"), [("2", "2"), ("3", "2"), ("3", "3")])
def test_each_write_is_applied_once_while_connections_break(site: Site, nodes: str, replicas: str) -> None:
    done = site.dragon("--nodes", nodes, PROGRAMS / "broken_links.py", nodes, replicas)
    assert (done.returncode, done.stdout) == (0, "all done once\n"), done.stderr


def test_a_broken_connection_without_replicas_fails_at_most_one_request(site: Site) -> None:
    program = site.write(
        f"""
        import sys, threading, time
        sys.path.insert(0, {str(PROGRAMS)!r})
        from broken_links import break_connections, on, report_agent
        from dragon.data.ddict import DDict
        from dragon.infrastructure.errors import NodeLostError
        from dragon.native.process import Process
        from dragon.native.queue import Queue
        from dragon.runtime.run import this_run

        if __name__ == "__main__":
            queue = Queue()
            process = Process(report_agent, (queue,), policy=on(1))
            process.start()
            process.join()
            agents = [this_run().agent.pid, queue.get(timeout=30)]
            ddict = DDict(policy=[on(1)], total_mem=2**24)
            threading.Timer(0.5, break_connections, (agents,)).start()
            done, doubtful, end = 0, 0, time.monotonic() + 3
            while time.monotonic() < end:
                try:
                    ddict.fetch_add("counter")
                    done += 1
                except NodeLostError as error:
                    print(error)
                    doubtful += 1
            print(done <= ddict["counter"] <= done + doubtful, doubtful)
        """
    )
    done = site.dragon("--nodes", "2", program)
    *errors, summary = done.stdout.splitlines()
    assert summary in ("True 0", "True 1"), done.stdout + done.stderr
    assert all("node 1" in error for error in errors)


@of_root
def test_a_connection_that_breaks_at_its_first_use_is_established_again(site: Site) -> None:
    program = site.write(
        f"""
        import sys, time
        sys.path.insert(0, {str(PROGRAMS)!r})
        from broken_links import break_connections, on, report_agent
        from dragon.data.ddict import DDict
        from dragon.native.process import Process
        from dragon.native.queue import Queue
        from dragon.runtime import agent_client
        from dragon.runtime.protocol.objects import OpenOutbox
        from dragon.runtime.run import this_run

        def hand_over(queue):
            own = Queue(0)
            queue.put(own)
            print(own.get(timeout=30))

        if __name__ == "__main__":
            queue = Queue()
            process = Process(report_agent, (queue,), policy=on(1))
            process.start()
            process.join()
            agents, ask = [this_run().agent.pid, queue.get(timeout=30)], agent_client.ask

            def ask_and_break(request, *arguments):
                answer = ask(request, *arguments)
                if isinstance(request, OpenOutbox):
                    agent_client.ask = ask
                    print(break_connections(agents) > 0, flush=True)
                    time.sleep(0.5)
                return answer

            reader = Process(hand_over, (queue,), policy=on(1))
            reader.start()
            theirs = queue.get(timeout=30)
            agent_client.ask = ask_and_break
            theirs.put("a message")
            reader.join()
            agent_client.ask = ask_and_break
            ddict = DDict(policy=[on(1)], total_mem=2**24)
            ddict["key"] = "a value"
            print(ddict["key"])
        """
    )
    done = site.dragon("--nodes", "2", "--no-label", program)
    assert sorted(done.stdout.splitlines()) == ["True", "True", "a message", "a value"], done.stderr


def test_setdefault_gives_processes_of_three_nodes_the_same_value(site: Site) -> None:
    program = site.write(
        """
        from dragon.data.ddict import DDict
        from dragon.infrastructure.policy import Policy
        from dragon.native.machine import System
        from dragon.native.process import Process
        from dragon.native.queue import Queue

        def claim(ddict, queue, name):
            queue.put([ddict.setdefault(number, name) for number in range(100)])

        if __name__ == "__main__":
            for replicas in (1, 2):
                ddict, queue = DDict(1, 2, 2**24, replicas=replicas), Queue()
                for node in System().nodes:
                    here = Policy(placement=Policy.Placement.HOST_ID, host_id=node)
                    Process(claim, (ddict, queue, node), policy=here).start()
                first, second, third = [queue.get(timeout=30) for _ in range(3)]
                print(first == second == third)
        """
    )
    done = site.dragon("--nodes", "3", program)
    assert done.stdout == "True\nTrue\n", done.stderr


def test_a_checkpoint_can_be_restored_on_another_number_of_nodes(site: Site) -> None:
    program = site.write(
        """
        import sys
        from dragon.data.ddict import DDict, PosixCheckpointPersister

        if __name__ == "__main__":
            options = dict(name="kept", persist_path="files", persist_count=-1, replicas=int(sys.argv[3]))
            nodes, restore = int(sys.argv[1]), sys.argv[2] == "restore"
            with DDict(1, nodes, 2**25, persister_class=PosixCheckpointPersister, restart=restore, **options) as ddict:
                if not restore:
                    ddict.update({number: number * 2 for number in range(1000)})
                    ddict.persist()
                print(sorted(ddict.items()) == [(number, number * 2) for number in range(1000)])
        """
    )
    for nodes, what, replicas in (
        ("2", "write", "1"),
        ("3", "restore", "1"),
        ("3", "restore", "2"),
        ("1", "restore", "1"),
    ):
        done = site.dragon("--nodes", nodes, program, nodes, what, replicas)
        assert done.stdout == "True\n", done.stderr


def test_an_error_names_the_lost_node_if_no_replica_remains(site: Site) -> None:
    program = site.write(
        """
        import os, signal, sys, time
        from dragon.data.ddict import DDict, DDictError
        from dragon.infrastructure.policy import Policy
        from dragon.native.machine import System
        from dragon.native.process import Process
        from dragon.native.queue import Queue
        from dragon.runtime.run import this_run

        def report_agent(queue):
            queue.put(this_run().agent.pid)

        if __name__ == "__main__":
            queue, there = Queue(), Policy(placement=Policy.Placement.HOST_ID, host_id=System().nodes[1])
            process = Process(report_agent, (queue,), policy=there)
            process.start()
            process.join()
            agent = queue.get(timeout=30)
            ddict = DDict(policy=[there], total_mem=2**20)
            ddict["key"] = 1
            os.kill(agent, signal.SIGKILL)
            try:
                while True:
                    ddict["key"]
            except (DDictError, ConnectionError) as error:
                print(type(error).__name__, error)
        """
    )
    done = site.dragon("--nodes", "2", program)
    assert done.returncode == 0, done.stderr
    assert "node 1" in done.stdout
    assert "is lost" in done.stdout


@pytest.mark.parametrize(("nodes", "replicas", "killed"), [("3", "2", "0"), ("3", "3", "0"), ("4", "2", "1")])
def test_reads_of_a_linearizable_dictionary_are_never_older_than_completed_puts(
    site: Site, nodes: str, replicas: str, killed: str
) -> None:
    program = PROGRAMS / "newest.py"
    done = site.dragon("--nodes", nodes, program, "linearizable", nodes, replicas, "6", killed, timeout=100)
    assert (done.returncode, done.stdout) == (0, "0 reads were too old\n"), done.stderr
    assert "cannot keep its copy" not in done.stderr
