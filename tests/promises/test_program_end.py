"""The end of a program is the same as with multiprocessing alone: children are joined, exit handlers and __del__
methods can use all objects, and waiting threads end with the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from conftest import Site

Launch = Callable[[str], "CompletedProcess[str]"]
WAYS = {"python": [], "dragon": ["-m", "dragon"], "two nodes": ["-m", "dragon", "--nodes", "2", "--no-label"]}


@pytest.fixture(params=WAYS)
def launch(request: pytest.FixtureRequest, site: Site) -> Launch:
    return lambda source: site.run(sys.executable, *WAYS[request.param], site.write(source))


def test_children_of_the_main_program_are_joined(launch: Launch) -> None:
    done = launch("""
        import multiprocessing as mp, time
        import dragon

        def late():
            time.sleep(0.7)
            print("child", flush=True)

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            mp.Process(target=late).start()
            print("main", flush=True)
    """)
    assert (done.stdout, done.returncode) == ("main\nchild\n", 0)


def test_children_of_a_program_that_a_process_of_the_run_starts_are_joined(launch: Launch) -> None:
    done = launch("""
        import multiprocessing as mp, subprocess, sys, time
        import dragon

        def late():
            time.sleep(0.7)
            print("child", flush=True)

        def start_program():
            subprocess.run([sys.executable, __file__, "inner"], check=True)

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            process = mp.Process(target=late if "inner" in sys.argv else start_program)
            process.start()
            if "inner" not in sys.argv:
                process.join()
                print("exit code", process.exitcode)
    """)
    assert (done.stdout, done.returncode) == ("child\nexit code 0\n", 0)


def test_exit_handlers_registered_before_the_first_use_can_use_all_objects(launch: Launch) -> None:
    done = launch("""
        import atexit

        def at_the_end():
            queue.put(len(dictionary))
            process = mp.Process(target=queue.put, args=("from a child",))
            print(queue.get())
            with mp.Pool(1) as pool:
                print(pool.map(abs, [-1, -2]))
            process.start()
            process.join()
            print(queue.get())

        if __name__ == "__main__":
            atexit.register(at_the_end)
        import multiprocessing as mp
        import dragon
        from dragon.data.ddict import DDict

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            queue, dictionary = mp.Queue(), DDict(1, 1, 2**26)
            dictionary["a"] = 1
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("1\n[1, 2]\nfrom a child\n", "", 0)


def test_del_methods_of_objects_of_the_main_program_can_use_its_names(launch: Launch) -> None:
    done = launch("""
        import multiprocessing as mp, os, tempfile
        import dragon

        class Workspace:
            def __init__(self):
                self.path = tempfile.mkdtemp()
                self.queue = mp.Queue()
            def __del__(self):
                os.rmdir(self.path)
                self.queue.put("still usable")
                print(self.queue.get(), os.path.exists(self.path))

        def child():
            pass

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            workspace = Workspace()
            with mp.Pool(1) as pool:
                pool.apply(child)
            process = mp.Process(target=child)
            process.start()
            process.join()
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("still usable False\n", "", 0)


WAITS = {
    "queue.get": "mp.Queue().get",
    "full queue": "full.put, (1,)",
    "simple queue": "mp.SimpleQueue().get",
    "large message": "full.put, (bytes(2**20),)",
    "joinable queue": "unfinished.join",
    "event": "mp.Event().wait",
    "lock": "held.acquire",
    "semaphore": "mp.Semaphore(0).acquire",
    "condition": "wait_in_condition",
    "barrier": "mp.Barrier(2).wait",
    "receive": "reader.recv",
    "poll": "reader.poll, (None,)",
    "wait": "mp.connection.wait, ([reader],)",
    "process": "sleeper.join",
    "pool": "pool.apply, (time.sleep, (60,))",
    "results of a pool": "list, (pool.imap(time.sleep, [60]),)",
    "dictionary": "waiting.__getitem__, ('never',)",
    "native lock": "native.acquire",
    "native process": "native_process.join",
    "group": "group.join",
    "batch": "batch.function(time.sleep, 60).get",
    "pickling": "mp.SimpleQueue().put, (SlowlyPickled(),)",
    "unpickling": "slowly_unpickled.get",
    "unpickling of buffers": "buffers.get",
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_waiting_daemon_thread_ends_with_the_program(wait: str, site: Site) -> None:
    done = site.python(f"""
        import builtins, multiprocessing as mp, multiprocessing.connection, pickle, queue, threading, time
        import dragon
        from dragon.data.ddict import DDict
        from dragon.native.lock import Lock
        from dragon.native.process import Process, ProcessTemplate
        from dragon.native.process_group import ProcessGroup
        from dragon.workflows.batch import Batch

        class Slow:
            def __del__(self, sleep=time.sleep):
                sleep(0.5)

        class SlowlyPickled:
            def __reduce__(self):
                time.sleep(0.4)
                return int, ()

        class SlowlyUnpickled:
            def __reduce__(self):
                return time.sleep, (0.4,)

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            name = {wait!r}
            full, held, unfinished = mp.Queue(1), mp.Lock(), mp.JoinableQueue()
            full.put(0), held.acquire(), unfinished.put(0)
            reader, writer = mp.Pipe()
            if name in ("process",):
                sleeper = mp.Process(target=time.sleep, args=(60,), daemon=True)
                sleeper.start()
            if "pool" in name:
                pool = mp.Pool(1)
            if name == "dictionary":
                waiting = DDict(1, 1, 2**26, wait_for_keys=True, working_set_size=2)
            native = Lock()
            native.acquire()
            native_process = Process(time.sleep, (60,))
            if name == "native process":
                native_process.start()
            if name == "group":
                group = ProcessGroup()
                group.add_process(1, ProcessTemplate(time.sleep, (60,)))
                group.init(), group.start()
            if name == "batch":
                batch = Batch()
            slowly_unpickled, buffers = mp.SimpleQueue(), mp.SimpleQueue()
            slowly_unpickled.put(SlowlyUnpickled())
            buffers.put([SlowlyUnpickled(), pickle.PickleBuffer(bytearray(2**20))])
            condition = mp.Condition()

            def wait_in_condition():
                with condition:
                    condition.wait()

            def start(function, args=()):
                threading.Thread(target=function, args=args, daemon=True).start()

            start({WAITS[wait]})
            time.sleep(0.2)
            builtins.kept = Slow()  # the end takes a while, in which the thread looks for it
            print("main is done", flush=True)
    """)
    assert (done.stdout, done.returncode, done.stderr) == ("main is done\n", 0, "")
    assert "terminate called" not in done.stderr


def test_no_resource_is_left_open_at_the_end(site: Site) -> None:
    program = site.write("""
        import multiprocessing as mp
        import dragon
        from dragon.native.process import Process

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            queue = mp.Queue()
            process = mp.Process(target=queue.put, args=(1,))
            process.start()
            process.join()
            native = Process(print, ("native",))
            native.start()
            native.join()
            print(queue.get())
    """)
    for way in ([], ["-m", "dragon"]):
        done = site.run(sys.executable, "-X", "dev", "-W", "error", *way, program)
        assert (done.stdout, done.stderr, done.returncode) == ("native\n1\n", "", 0)


def test_a_program_without_processes_leaves_no_connection_open(site: Site) -> None:
    program = site.write("""
        from dragon.data.ddict import DDict

        if __name__ == "__main__":
            ddict = DDict(1, 1, 2**24)
    """)
    done = site.run(sys.executable, "-X", "dev", "-W", "error", program)
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_wait_of_an_exit_handler_for_a_result_ends_with_an_error(site: Site) -> None:
    done = site.python("""
        import atexit

        def ask():
            try:
                result.get(60)
            except RuntimeError as error:
                print(error)

        atexit.register(ask)  # called after all that is registered later

        import time
        import multiprocessing as mp
        import dragon

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            pool = mp.Pool(1)
            result = pool.apply_async(time.sleep, (60,))
    """)
    assert done.stdout == "the pool was terminated before this task was done\n", done.stderr
