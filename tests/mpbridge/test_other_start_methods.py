"""Dragon objects in processes of other start methods."""

from __future__ import annotations

import sys

import pytest

from conftest import Site

PROGRAM = """
    import multiprocessing as mp, sys
    import dragon
    from dragon.data.ddict import DDict
    from dragon.native import Queue as NativeQueue

    def work(queue, native, joinable, simple, connection, lock, event, condition, barrier, value, array, dictionary):
        with lock, condition:
            value.value += 1
            array[1] = 7
        dictionary["from"] = "the child"
        connection.send([dictionary["to"], connection.recv()])
        native.put("native")
        joinable.put("joinable")
        simple.put("simple")
        event.set()
        barrier.wait()
        queue.put("queue")

    if __name__ == "__main__":
        ours = mp.get_context("dragon")
        for method in ("fork", "spawn", "forkserver", "dragon"):
            here, there = ours.Pipe()
            queues = [ours.Queue(), NativeQueue(), ours.JoinableQueue(), ours.SimpleQueue()]
            shared = [*queues, there, ours.Lock(), ours.Event(),
                      ours.Condition(), ours.Barrier(2), ours.Value("i", 1), ours.Array("i", 3), DDict(1, 1, 2**26)]
            shared[-1]["to"] = "the parent"
            process = mp.get_context(method).Process(target=work, args=shared)
            process.start()
            here.send("sent")
            print(method, here.recv(), end=" ")
            shared[8].wait()
            print(*[shared[index].get() for index in range(4)], end=" ")
            print(shared[6].is_set(), shared[9].value, shared[10][:], end=" ")
            process.join()
            print(shared[-1]["from"], process.exitcode)
"""


@pytest.mark.parametrize("command", [[], ["-m", "dragon"]], ids=["python", "dragon"])
def test_all_objects_can_be_used_in_processes_of_every_start_method(site: Site, command: list[str]) -> None:
    done = site.run(sys.executable, *command, site.write(PROGRAM))
    what = "['the parent', 'sent'] queue native joinable simple True 2 [0, 7, 0] the child 0"
    assert done.stdout.splitlines() == [f"{method} {what}" for method in ("fork", "spawn", "forkserver", "dragon")]
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_queue_can_be_passed_to_the_workers_of_a_standard_pool(site: Site) -> None:
    done = site.python("""
        import multiprocessing as mp
        import dragon

        def initialize(given):
            global queue
            queue = given

        def work(number):
            queue.put(number)

        if __name__ == "__main__":
            queue = mp.get_context("dragon").Queue()
            with mp.get_context("spawn").Pool(2, initialize, (queue,)) as pool:
                pool.map(work, range(4))
            print(sorted(queue.get() for _ in range(4)))
    """)
    assert (done.stdout, done.stderr) == ("[0, 1, 2, 3]\n", "")
