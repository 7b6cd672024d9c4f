"""The end of a process of another node is reported after the messages that it has put into a queue arrived."""

from __future__ import annotations

import textwrap

import pytest

from conftest import Site

PROGRAM = """
    import multiprocessing.connection, os, signal, sys, threading, time
    from contextlib import contextmanager
    from pathlib import Path
    from dragon.infrastructure.policy import Policy
    from dragon.native.process import Process, ProcessTemplate
    from dragon.native.process_group import ProcessGroup
    from dragon.native.queue import Queue

    AWAY = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")

    def parent_of(pid):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def agent():
        return parent_of(os.getppid())

    @contextmanager
    def stopped(pid):
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def wait_until(what):
        end = time.monotonic() + 30
        while not what():
            assert time.monotonic() < end
            time.sleep(0.005)
"""


def _passes(site: Site, rest: str, *arguments: str) -> None:
    program = site.write(textwrap.dedent(PROGRAM) + textwrap.dedent(rest))
    done = site.dragon("--nodes", "2", program, *arguments, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all there\n", "")


@pytest.mark.parametrize("how", ["sentinel", "join", "group"])
def test_the_end_is_reported_after_messages_that_waited_for_acknowledgements(site: Site, how: str) -> None:
    _passes(
        site,
        """
        COUNT = 20  # more than are sent before the first arrive

        def put(queue, told, go):
            queue.put(b"the way is open")
            told.put(os.getpid())
            wait_until(go.exists)
            for _ in range(COUNT):
                queue.put(b"x" * 1_000_000)

        def waiter(how, arguments):
            if how == "group":
                group = ProcessGroup()
                group.add_process(1, ProcessTemplate(put, arguments, policy=AWAY))
                group.init()
                group.start()
                return group.join
            process = Process(put, arguments, policy=AWAY)
            process.start()
            process._started.sentinel  # the end is noticed from now on
            if how == "join":
                return process.join
            return lambda: multiprocessing.connection.wait([process._started.sentinel])

        if __name__ == "__main__":
            queue, told, go, found = Queue(0), Queue(), Path("go"), []
            wait = waiter(sys.argv[1], (queue, told, go))
            thread = threading.Thread(target=lambda: (wait(), found.append(queue.qsize())))
            thread.start()
            pid = told.get(timeout=30)
            time.sleep(0.3)
            with stopped(agent()):
                go.touch()
                wait_until(lambda: not Path(f"/proc/{pid}").exists())
                time.sleep(0.3)
            thread.join()
            assert found == [1 + COUNT], found
            print("all there")
        """,
        how,
    )


@pytest.mark.parametrize("how", ["sentinel", "join"])
def test_the_end_is_reported_after_messages_that_another_process_delays(site: Site, how: str) -> None:
    _passes(
        site,
        """
        def stir(queue, told):
            queue.put("one")
            told.put((os.getpid(), agent()))
            # Often holds the lock of the messages to that queue, and leaves it as it is.
            while True:
                queue._outbox()._fileno()

        def stop(queue, told, stirrer, go, end):
            queue.put("two")
            outbox = queue._outbox()
            told.put(os.getpid())
            wait_until(go.exists)
            os.kill(stirrer, signal.SIGSTOP)
            while outbox._holder() != stirrer:
                os.kill(stirrer, signal.SIGCONT)
                time.sleep(0.001)
                os.kill(stirrer, signal.SIGSTOP)
                time.sleep(0.0005)
            end.touch()

        def last(queue, told, go):
            queue.put("three")
            told.put(os.getpid())
            wait_until(go.exists)
            queue.put("last words")

        def has_ended(pid):
            return not Path(f"/proc/{pid}").exists()

        if __name__ == "__main__":
            queue, told, go, gone, held = Queue(0), Queue(), Path("go"), Path("gone"), Path("held")
            stirrer = Process(stir, (queue, told), policy=AWAY)
            stirrer.start()
            pid, other_agent = told.get(timeout=30)
            stopper = Process(stop, (queue, told, pid, gone, held), policy=AWAY)
            stopper.start()
            told.get(timeout=30)
            away = Process(last, (queue, told, go), policy=AWAY)
            away.start()
            last_pid = told.get(timeout=30)
            sentinel, found = away._started.sentinel, []
            wait = away.join if sys.argv[1] == "join" else lambda: multiprocessing.connection.wait([sentinel])
            thread = threading.Thread(target=lambda: (wait(), found.append(queue.qsize())))
            thread.start()
            time.sleep(0.3)
            with stopped(other_agent):
                go.touch()
                wait_until(lambda: has_ended(last_pid))
                gone.touch()
                wait_until(held.exists)
            time.sleep(0.3)
            os.kill(pid, signal.SIGKILL)
            thread.join()
            assert found == [4], found
            print("all there")
        """,
        how,
    )


def test_a_wait_for_the_end_times_out_while_there_is_no_memory_for_the_messages(site: Site) -> None:
    program = """
        COUNT = 33  # more than fit into the memory of the first node

        def put(queue):
            for _ in range(COUNT):
                queue.put(b"x" * 990_000)

        if __name__ == "__main__":
            queue = Queue(0)
            process = Process(put, (queue,), policy=AWAY)
            process.start()
            assert process.join(timeout=5) is None
            for _ in range(COUNT):
                queue.get(timeout=30)
            assert process.join() == 0
            print("all there")
    """
    source = site.write(textwrap.dedent(PROGRAM) + textwrap.dedent(program))
    done = site.dragon("--nodes", "2", source, env={"DRAGON_ARENA_SIZE": "32M"}, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all there\n", "")


@pytest.mark.parametrize("how", ["ends", "closes"])
def test_a_pipe_ends_after_all_that_a_process_has_sent(site: Site, how: str) -> None:
    _passes(
        site,
        """
        import multiprocessing as mp

        COUNT = 200

        def send(end):
            for number in range(COUNT):
                end.send((number, bytes(10**5)))
            if sys.argv[1] == "closes":
                end.close()
                time.sleep(60)

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            for _ in range(5):
                reading, writing = mp.Pipe()
                with AWAY:
                    process = mp.Process(target=send, args=(writing,))
                    process.start()
                writing.close()
                for number in range(COUNT):
                    assert reading.recv()[0] == number
                try:
                    reading.recv()
                except EOFError:
                    process.kill()
                    process.join()
            print("all there")
        """,
        how,
    )


def test_a_join_takes_any_number_of_seconds(site: Site) -> None:
    _passes(
        site,
        """
        import multiprocessing as mp

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            with AWAY:
                process = mp.Process(target=time.sleep, args=(60,))
                process.start()
            for seconds in (-1, 0, 0.01):
                process.join(seconds)
                assert process.is_alive()
            process.kill()
            process.join(1e10)
            assert process.exitcode == -signal.SIGKILL
            print("all there")
        """,
    )
