"""Objects whose lock a stopped process holds: the operations of other nodes on them wait, and none is lost."""

from __future__ import annotations

import textwrap

from conftest import Site

PROGRAM = """
    import os, queue, signal, sys, threading, time
    from contextlib import contextmanager
    import numpy as np
    from dragon.infrastructure.policy import Policy
    from dragon.native.process import Process
    from dragon.native.queue import Queue

    AWAY = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")

    def stir(queue, ended, told):
        told.put(os.getpid())
        # Often holds the queue's lock, and leaves it as it is.
        while ended.empty():
            for _ in range(1000):
                queue._fileno()

    @contextmanager
    def stopped_with_the_lock(queue, pid):
        end = time.monotonic() + 30
        os.kill(pid, signal.SIGSTOP)
        while queue._holder() != pid:
            assert time.monotonic() < end, "it was never stopped with the lock"
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.001)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.0005)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def main(work, expected):
        stirred, ended, told = Queue(0), Queue(), Queue()
        stirred.put("one")
        stirrer = Process(stir, (stirred, ended, told))
        stirrer.start()
        with stopped_with_the_lock(stirred, told.get(timeout=30)):
            away = Process(work, (stirred, told), policy=AWAY)
            away.start()
            assert told.get(timeout=30) == "begun"
            time.sleep(0.5)
        assert told.get(timeout=30) == "done"
        away.join()
        ended.put(None)
        stirrer.join()
        found = []
        while not stirred.empty():
            found.append(stirred.get(timeout=30))
        sizes = sorted(len(each) for each in found)
        assert sizes == expected, sizes
        print("all there")
"""


def _passes(site: Site, rest: str) -> None:
    done = site.dragon("--nodes", "2", site.write(textwrap.dedent(PROGRAM) + textwrap.dedent(rest)), timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all there\n", "")


def test_messages_of_another_node_wait_for_the_lock(site: Site) -> None:
    _passes(
        site,
        """
        SIZES = [5_000_000, 3, 200] * 20

        def put(queue, told):
            told.put("begun")
            for size in SIZES:
                queue.put(b"x" * size)
            told.put("done")

        if __name__ == "__main__":
            main(put, sorted([3, *SIZES]))
        """,
    )


def test_a_get_from_another_node_waits_for_the_lock_of_a_queue_that_is_not_empty(site: Site) -> None:
    _passes(
        site,
        """
        def take(queue, told):
            told.put("begun")
            queue.put("two")
            queue.put_nowait(queue.get(timeout=20) + "x")
            told.put("done")

        if __name__ == "__main__":
            main(take, [3, 4])
        """,
    )


def test_the_end_of_a_process_of_another_node_is_reported_after_its_messages(site: Site) -> None:
    _passes(
        site,
        """
        def unlock(pid):
            time.sleep(1.5)  # as on a machine that is so busy that a process gets no processor for that long
            os.kill(pid, signal.SIGCONT)

        def last(queue):
            queue.put("last words")

        if __name__ == "__main__":
            queue, ended, told = Queue(0), Queue(), Queue()
            queue.put("one")
            stirrer = Process(stir, (queue, ended, told))
            stirrer.start()
            pid = told.get(timeout=30)
            with stopped_with_the_lock(queue, pid):
                away = Process(last, (queue,), policy=AWAY)
                away.start()
                threading.Thread(target=unlock, args=(pid,)).start()
                away.join()
                assert queue.qsize() == 2
            ended.put(None)
            stirrer.join()
            print("all there")
        """,
    )
