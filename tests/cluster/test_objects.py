"""The tests of the native classes, run over two nodes and with every object on the other node."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from conftest import Site

TESTS = Path(__file__).parents[1]
OBJECTS = ("native/test_queue.py", "native/test_sync.py", "mpbridge/test_wait.py")


def over_two_nodes(site: Site, *options: str | Path, transport: str = "tcp") -> None:
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    pytest_options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "within_a_run",
        "-c",
        TESTS.parent / "pyproject.toml",
        "-o",
        "timeout=150",
    ]
    command = [sys.executable, "-m", "dragon", "--nodes", "2", "--transport", transport, "-m", "pytest"]
    command += map(str, [*pytest_options, *options])
    done = site.run(*command, timeout=280, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("folder", ["native", "mpbridge"])
def test_processes_of_two_nodes_share_objects_of_the_first(site: Site, folder: str) -> None:
    over_two_nodes(site, TESTS / folder)


@pytest.mark.long
@pytest.mark.parametrize("names", [("ddict",), ("clients", "checkpoints", "model")])
def test_processes_of_two_nodes_share_dictionaries(site: Site, names: tuple[str, ...]) -> None:
    over_two_nodes(site, *(TESTS / "data" / f"test_{name}.py" for name in names))


def test_large_values_of_a_dictionary_go_over_plain_tcp(site: Site) -> None:
    over_two_nodes(site, TESTS / "data" / "test_ddict.py", "-k", "large_values or killed", transport="plain")


def test_objects_of_another_node_can_be_awaited(site: Site) -> None:
    over_two_nodes(site, "-p", "elsewhere", TESTS / "aio", "-k", "not uvloop and not anyio and not thousand")


@pytest.mark.long
def test_every_object_can_be_on_another_node(site: Site) -> None:
    over_two_nodes(site, "-p", "elsewhere", *(TESTS / name for name in OBJECTS))


def test_small_arrays_and_buffers_from_another_node_can_be_written_to(site: Site) -> None:
    program = site.write("""
        import pickle
        import numpy
        from dragon.infrastructure.policy import Policy
        from dragon.native.process import Process
        from dragon.native.queue import Queue

        def send(queue, size):
            queue.put((numpy.empty(0), pickle.PickleBuffer(bytearray(size))))

        if __name__ == "__main__":
            policy = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
            for size in (0, 1, 100):
                queue = Queue()
                Process(send, (queue, size), policy=policy).start()
                array, data = queue.get(timeout=30)
                assert array.shape == (0,) and data == bytes(size)
                data[:] = bytes(size)
    """)
    done = site.dragon("--nodes", "2", program)
    assert (done.returncode, done.stderr) == (0, "")


def test_items_of_a_process_of_another_node_can_be_read_after_its_end(site: Site) -> None:
    program = site.write("""
        from dragon.infrastructure.policy import Policy
        from dragon.native.process import Process
        from dragon.native.queue import Queue

        if __name__ == "__main__":
            away = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
            for number in range(40):
                queue = Queue(0)
                process = Process(queue.put, (number,), policy=away)
                process.start()
                process.join()
                assert queue.get_nowait() == number
            print("all there")
    """)
    done = site.dragon("--nodes", "2", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all there\n", "")


def test_an_agent_keeps_no_descriptors_of_destroyed_queues(site: Site) -> None:
    program = site.write("""
        import os
        from dragon.infrastructure.policy import Policy
        from dragon.native.queue import Queue
        from dragon.runtime.run_info import RunInfo
        from dragon.runtime.run import this_run

        def use(away):
            for number in range(100):
                queue = Queue(0, policy=away)
                queue.put(number)
                assert queue.get() == number
            return len(os.listdir(f"/proc/{RunInfo.read(this_run().folder).agent.pid}/fd"))

        if __name__ == "__main__":
            away = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
            before = use(away)
            assert use(away) < before + 50
    """)
    done = site.dragon("--nodes", "2", program)
    assert done.returncode == 0, done.stderr


def test_a_reply_of_a_dictionary_that_does_not_fit_in_memory_raises_memory_error(site: Site) -> None:
    program = site.write("""
        from dragon.data.ddict import DDict
        from dragon.infrastructure.policy import Policy
        from dragon.native.queue import Queue

        if __name__ == "__main__":
            policy = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
            ddict, queue = DDict(1, 1, 2**27, policy=policy), Queue(0)
            for key in range(3):
                ddict[key] = bytes(20 * 2**20)
            try:
                while True:
                    queue.put(bytes(2**22))
            except MemoryError:
                pass
            for pending in [ddict.begin_get(key) for key in range(3)]:
                try:
                    pending.result()
                except MemoryError as error:
                    print(error)
            while not queue.empty():
                queue.get()
            assert [len(ddict[key]) for key in range(3)] == [20 * 2**20] * 3
    """)
    done = site.dragon("--nodes", "2", program, timeout=120, env={"DRAGON_ARENA_SIZE": "200m"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("messages in flight are lost") == 3, done.stdout


def test_messages_wait_until_their_node_has_memory_and_more_are_refused(site: Site) -> None:
    program = site.write("""
        import time
        from dragon.infrastructure.policy import Policy
        from dragon.native.event import Event
        from dragon.native.machine import System
        from dragon.native.process import Process
        from dragon.native.queue import Queue


        def put(queue, refused, freed, received):
            for number in range(10):
                queue.put((number, bytes(2**20)))
            accepted = 10
            while True:
                try:
                    queue.put((accepted, b""))
                except MemoryError as error:
                    assert "earlier ones wait" in str(error)
                    break
                accepted += 1
                time.sleep(0.05)
            refused.set()
            freed.wait()
            while True:
                try:
                    queue.put((accepted, None))
                    break
                except MemoryError:
                    time.sleep(0.05)
            received.wait()


        if __name__ == "__main__":
            other = Policy(placement=Policy.Placement.HOST_ID, host_id=System().nodes[1])
            queue, filler, refused, freed, received = Queue(0), Queue(0), Event(), Event(), Event()
            try:
                while True:
                    filler.put(bytes(2**19))
            except MemoryError:
                pass
            process = Process(put, (queue, refused, freed, received), policy=other)
            process.start()
            refused.wait()
            filler.destroy()
            freed.set()
            numbers, content = [], b""
            while content is not None:
                number, content = queue.get()
                numbers.append(number)
            received.set()
            process.join()
            assert len(numbers) > 10 and numbers == list(range(len(numbers)))
            assert process.returncode == 0
    """)
    done = site.dragon("--nodes", "2", program, env={"DRAGON_ARENA_SIZE": "64m"})
    assert done.returncode == 0, done.stderr
    assert "there is no memory for messages from node 1, which wait until there is" in done.stderr


def test_replies_of_a_dictionary_wait_until_there_is_memory_for_them(site: Site) -> None:
    program = site.write("""
        import os, sys, threading, time
        from dragon.data.ddict import DDict
        from dragon.infrastructure.policy import Policy
        from dragon.native.process import Process
        from dragon.native.queue import Queue

        def fill(folder):
            queue = Queue(0)
            for size in (2**20, 2**14, 2**12):
                try:
                    while True:
                        queue.put(bytes(size))
                except MemoryError:
                    pass
            open(folder + "/full", "w").close()
            while not os.path.exists(folder + "/empty"):
                time.sleep(0.01)
            queue.destroy()

        if __name__ == "__main__":
            folder = sys.argv[1]
            policy = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
            ddict = DDict(1, 1, 2**27, policy=policy)
            for key in range(100):
                ddict[f"a key of the dictionary, the one numbered {key}"] = bytes(3000)
            key = "a key of the dictionary, the one numbered 7"
            found = []
            kinds = [lambda: len(ddict.keys()), lambda: len(ddict[key]), lambda: ddict.update({key: bytes(2000)})]
            asked = kinds * 3
            threads = [threading.Thread(target=lambda ask=ask: found.append(ask()), daemon=True) for ask in asked]
            filler = Process(fill, (folder,), policy=policy)
            filler.start()
            while not os.path.exists(folder + "/full"):
                time.sleep(0.01)
            for thread in threads:
                thread.start()
            time.sleep(2)
            open(folder + "/empty", "w").close()
            filler.join()
            for thread in threads:
                thread.join(30)
            print(len(found), {number for number in found if number is not None} <= {100, 2000, 3000})
            sys.stdout.flush()
            os._exit(0)
    """)
    done = site.dragon("--nodes", "2", program, str(site.folder), timeout=120, env={"DRAGON_ARENA_SIZE": "100m"})
    assert done.stdout == "9 True\n", done.stdout + done.stderr


def test_queues_of_another_node_use_no_descriptors(site: Site) -> None:
    program = site.write("""
        import os
        from dragon.infrastructure.policy import Policy
        from dragon.native.queue import Queue
        from dragon.runtime.run_info import RunInfo
        from dragon.runtime.run import this_run

        def descriptors():
            agent = RunInfo.read(this_run().folder).agent.pid
            return [len(os.listdir(f"/proc/{pid}/fd")) for pid in (agent, os.getpid())]

        def used(queue):
            queue.put("to")
            assert queue.get() == "to"
            return queue

        if __name__ == "__main__":
            away = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
            first = used(Queue(0, policy=away))
            before = descriptors()
            more = [used(Queue(0, policy=away)) for _ in range(300)]
            print([after - some < 10 for after, some in zip(descriptors(), before)])
    """)
    done = site.dragon("--nodes", "2", program)
    assert (done.stdout, done.stderr) == ("[True, True]\n", "")


def test_objects_that_are_made_in_a_policy_block_are_on_its_node(site: Site) -> None:
    program = site.write(
        """
        import multiprocessing as mp

        from dragon import mpbridge, native
        from dragon.data.ddict import DDict
        from dragon.infrastructure.policy import Policy
        from dragon.native.machine import System
        from dragon.native.process import Process
        from dragon.native.queue import Queue
        from dragon.runtime.remote import node_of

        NATIVE = [native.Lock, native.RLock, native.Event, native.Semaphore, native.Condition, native.Queue]
        KINDS = ["Queue", "JoinableQueue", "SimpleQueue", "Lock", "RLock", "Semaphore", "BoundedSemaphore", "Event",
                 "Condition"]

        def name_of(made):
            while not hasattr(made, "_name"):
                made = getattr(made, "_wrapper", None) or getattr(made, "_obj", None) or made._memory._words
            return made._name()

        def nodes():
            made = [kind() for kind in NATIVE] + [getattr(mp, kind)() for kind in KINDS]
            made += [native.Value("i", 1), native.Array("i", [1, 2]), mp.Value("i", 1), mp.Array("i", [1, 2])]
            made += [native.Barrier(2)._round, mp.Barrier(2)._arrivals, mp.RawValue("d", 1), mp.RawArray("d", 3)]
            with DDict(1, 2, 2**23) as ddict:
                return {node_of(name_of(one)) for one in made} | {one.node for one in ddict._scope.descriptor.shards}

        def tell(queue):
            queue.put(nodes())

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            first, second = System().hostname_policies()
            for index, policy in enumerate((first, second)):
                with policy:
                    assert nodes() == {index}, nodes()
                    assert Queue(policy=first).node == 0
                    assert Queue(policy=Policy(placement=Policy.Placement.LOCAL)).node == 0
                    answer = Queue()
                    Process(tell, (answer,)).start()
                    assert answer.get(timeout=60) == {index}
            assert Queue().node == 0
            print("passed")
        """
    )
    done = site.dragon("--nodes", "2", program)
    assert done.stdout == "passed\n", done.stderr


def test_threads_that_used_another_node_end(site: Site) -> None:
    program = site.write("""
        import threading

        from dragon.infrastructure.policy import Policy
        from dragon.native.queue import Queue

        if __name__ == "__main__":
            queue = Queue(100, policy=Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1"))
            for _ in range(60):
                threads = [threading.Thread(target=queue.qsize) for _ in range(60)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            print("all have ended")
    """)
    done = site.dragon("--nodes", "2", program, timeout=120)
    assert (done.returncode, done.stdout) == (0, "all have ended\n"), done.stderr
