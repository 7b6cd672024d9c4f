"""How the zygote starts Python processes, depending on what the import of the main program does."""

from __future__ import annotations

import importlib.util
import os
import pty
import signal
import sys

import pytest

from conftest import Site

HEAD = """
    import multiprocessing as mp
    import os, sys, threading, time
    import dragon
    {at_import}

    def report(queue):
        queue.put(("ok", __name__))

    if __name__ == "__main__":
        mp.set_start_method("dragon")
        queue = mp.Queue()
        processes = [mp.Process(target=report, args=(queue,)) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        print([p.exitcode for p in processes], sorted(queue.get() for p in processes if p.exitcode == 0))
"""
FINE = "[0, 0, 0] [('ok', '__mp_main__'), ('ok', '__mp_main__'), ('ok', '__mp_main__')]\n"


def test_the_main_program_is_imported_once(site: Site) -> None:
    done = site.python(HEAD.format(at_import="print('imported by', 'me' if __name__ == '__main__' else 'others')"))
    assert sorted(done.stdout.splitlines()) == sorted(["imported by me", "imported by others", FINE.strip()])


def test_threads_at_import_lead_to_fresh_interpreters_with_one_warning(site: Site) -> None:
    thread = "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"
    done = site.python(HEAD.format(at_import=thread))
    assert done.stdout == FINE, done.stderr
    assert done.stderr.count("fresh interpreters") == 1
    assert "started a thread that outlives a fork (Thread-1 (sleep))" in done.stderr


def test_numpy_and_its_threads_do_not_lead_to_fresh_interpreters(site: Site) -> None:
    pytest.importorskip("numpy")
    done = site.python(HEAD.format(at_import="import numpy; numpy.ones((300, 300)) @ numpy.ones((300, 300))"))
    assert done.stdout == FINE, done.stderr
    assert done.stderr == ""


def test_packages_of_science_do_not_lead_to_fresh_interpreters(site: Site) -> None:
    packages = ["matplotlib", "numexpr", "pandas", "pyarrow", "scipy", "sklearn", "torch", "zarr"]
    installed = [name for name in packages if importlib.util.find_spec(name) is not None]
    if not installed:
        pytest.skip(f"none of {', '.join(packages)} is installed")
    done = site.python(HEAD.format(at_import=f"import {', '.join(installed)}"))
    assert done.stdout == FINE, done.stderr
    assert "fresh interpreters" not in done.stderr


def test_pyarrow_and_its_thread_do_not_lead_to_fresh_interpreters(site: Site) -> None:
    pytest.importorskip("pyarrow")
    done = site.python(
        HEAD.format(at_import="import pyarrow").replace("__name__))", "pyarrow.array(range(100_000))[-1].as_py()))", 1)
    )
    assert done.stdout == f"[0, 0, 0] {[('ok', 99_999)] * 3}\n", done.stderr
    assert done.stderr == ""


def test_numexpr_and_its_threads_do_not_lead_to_fresh_interpreters(site: Site) -> None:
    pytest.importorskip("numexpr")
    at_import = "import numexpr; numbers = numexpr.evaluate('1.0 * x', {'x': list(range(100_000))})"
    evaluation = "float(numexpr.evaluate('sum(2 * numbers)'))))"
    done = site.python(HEAD.format(at_import=at_import).replace("__name__))", evaluation, 1))
    assert done.stdout == f"[0, 0, 0] {[('ok', 9_999_900_000.0)] * 3}\n", done.stderr
    assert done.stderr == ""


def test_threads_beside_those_of_numexpr_lead_to_fresh_interpreters(site: Site) -> None:
    pytest.importorskip("numexpr")
    thread = "import numexpr; threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"
    done = site.python(HEAD.format(at_import=thread))
    assert done.stdout == FINE, done.stderr
    assert "started a thread that outlives a fork" in done.stderr


def test_a_hook_that_blocks_in_a_forked_child_leads_to_fresh_interpreters(site: Site) -> None:
    at_import = """
    if __name__ != "__main__":
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        os.register_at_fork(after_in_child=lambda: time.sleep(1000))
    """
    done = site.python(HEAD.format(at_import=at_import))
    assert done.stdout == FINE, done.stderr
    assert "registered functions for forks that do not return" in done.stderr


def test_an_error_at_the_import_of_the_main_program_is_printed(site: Site) -> None:
    broken = "if __name__ != '__main__': raise RuntimeError('only once')"
    done = site.python(HEAD.format(at_import=broken))
    assert done.stdout == "[1, 1, 1] []\n"
    assert "RuntimeError: only once" in done.stderr


def test_at_fork_hooks_of_the_main_program_are_called(site: Site) -> None:
    hook = "os.register_at_fork(after_in_child=lambda: os.environ.update(FORKED='yes'))"
    done = site.python(HEAD.format(at_import=hook).replace("__name__))", "os.environ['FORKED']))", 1))
    assert done.stdout == "[0, 0, 0] [('ok', 'yes'), ('ok', 'yes'), ('ok', 'yes')]\n", done.stderr


def test_children_draw_different_random_numbers(site: Site) -> None:
    done = site.python(
        """
        import random
        import dragon
        import multiprocessing as mp

        def draw(queue):
            queue.put(random.random())

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            queue = mp.Queue()
            processes = [mp.Process(target=draw, args=(queue,)) for _ in range(5)]
            [p.start() for p in processes], [p.join() for p in processes]
            print(len({queue.get() for _ in processes}))
        """
    )
    assert done.stdout == "5\n", done.stderr


def test_a_program_with_closed_standard_streams_can_start_processes(site: Site) -> None:
    program = site.write(
        """
        import os
        from dragon.native import Process, Queue

        def work(queue):
            queue.put("done")

        if __name__ == "__main__":
            queue = Queue()
            process = Process(work, (queue,))
            process.start()
            open("result", "w").write(f"{queue.get(timeout=30)} {process.join()}")
        """
    )
    done = site.run("sh", "-c", f"exec {sys.executable} {program} <&- >&- 2>&-")
    assert done.returncode == 0
    assert (site.folder / "result").read_text() == "done 0"


WAIT = """
    import time
    from dragon.native import Process

    def sleep():
        print("asleep", flush=True)
        time.sleep(1000)

    if __name__ == "__main__":
        process = Process(sleep)
        process.start()
        process.join()
"""


@pytest.mark.parametrize("launcher", [False, True], ids=["python", "dragon"])
@pytest.mark.parametrize("how", ["Ctrl-C", "closed"])
def test_ctrl_c_or_a_closed_terminal_ends_the_run(site: Site, how: str, launcher: bool) -> None:
    command = [sys.executable, *(["-m", "dragon"] if launcher else []), str(site.write(WAIT))]
    environment = site.environment
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, command, environment)
    seen = b""
    while b"asleep" not in seen:
        seen += os.read(terminal, 1024)
    if how == "Ctrl-C":
        os.write(terminal, b"\x03")
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in (-signal.SIGINT, 128 + signal.SIGINT)
        os.close(terminal)
    else:
        os.close(terminal)
        os.waitpid(pid, 0)
    site.assert_nothing_left()


def test_processes_start_on_their_node_even_if_its_zygote_starts_late(site: Site) -> None:
    site.write(
        """
        import socket, sys, time

        class Slow:
            def find_spec(self, name, path=None, target=None):
                if name == "dragon.native.workers" and socket.gethostname() == "node-1":
                    time.sleep(2)

        sys.meta_path.insert(0, Slow())
        """,
        "sitecustomize.py",
    )
    program = site.write(
        """
        from dragon.native.machine import current
        from dragon.native.process import ProcessTemplate
        from dragon.native.process_group import ProcessGroup
        from dragon.native.queue import Queue

        def where(queue):
            queue.put(current().hostname)

        if __name__ == "__main__":
            queue = Queue()
            group = ProcessGroup()
            group.add_process(4, ProcessTemplate(where, (queue,)))
            group.init()
            group.start()
            group.join()
            print(sorted(queue.get(timeout=0) for _ in range(4)))
            group.close()
        """
    )
    path = os.pathsep.join(filter(None, [str(site.folder), os.environ.get("PYTHONPATH")]))
    done = site.dragon("--nodes", "2", program, env={"PYTHONPATH": path})
    assert done.stdout == "['node-0', 'node-0', 'node-1', 'node-1']\n", done.stderr


def test_a_query_for_a_starting_process_waits_for_the_import_of_the_main_program(site: Site) -> None:
    done = site.python("""
        import os, threading, time
        import dragon
        from dragon.native.process import Process, ProcessTemplate
        from dragon.native.process_group import ProcessGroup

        while __name__ != "__main__" and not os.path.exists("asked"):
            time.sleep(0.05)

        def work():
            time.sleep(60)

        if __name__ == "__main__":
            group = ProcessGroup()
            group.add_process(1, ProcessTemplate(work))
            group.init(), group.start()
            puid, = group.puids

            def look():
                print(Process(None, ident=puid).is_alive)

            looking = threading.Thread(target=look)
            looking.start()
            looking.join(1.5)
            print(looking.is_alive())
            open("asked", "w").close()
            looking.join()
            group.stop(), group.close()
    """)
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")


def test_requests_to_the_agent_do_not_wait_for_the_import_of_the_main_program(site: Site) -> None:
    done = site.python("""
        import os, threading, time
        import dragon
        import multiprocessing as mp
        from dragon.native.process import Process, ProcessTemplate
        from dragon.native.process_group import ProcessGroup

        while __name__ != "__main__" and not os.path.exists("asked"):
            time.sleep(0.05)

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            group = ProcessGroup()
            group.add_process(1, ProcessTemplate("/bin/sleep", ("60",)))
            group.init(), group.start()
            puid, = group.puids
            order = []

            def start():
                process = mp.Process(target=os.getpid)
                process.start()
                process.join()
                order.append("started")

            def look():
                Process(None, ident=puid)
                order.append("looked")

            starting = threading.Thread(target=start)
            starting.start()
            time.sleep(0.3)
            looking = [threading.Thread(target=look) for _ in range(8)]
            for thread in looking:
                thread.start()
            time.sleep(0.1)
            assert group.puids == [puid]
            order.append("asked")
            open("asked", "w").close()
            for thread in [starting, *looking]:
                thread.join()
            group.stop(), group.close()
            print(order[0], *sorted(order[1:]))
    """)
    assert (done.stdout, done.stderr) == (f"asked{' looked' * 8} started\n", "")
