"""The processes, sockets, memory and files of a program are removed, whichever way it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from conftest import Site

PROGRAM = """
    import json, os, subprocess, sys, time
    import multiprocessing as mp
    import dragon
    from dragon.runtime.run import this_run

    def work(queue):
        grandchild = subprocess.Popen(["sleep", "1000"])
        queue.put([os.getpid(), grandchild.pid])
        queue.put(bytes(5_000_000))
        time.sleep(1000)

    def parent_of(pid):
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])

    if __name__ == "__main__":
        mp.set_start_method("dragon")
        queue = mp.Queue()
        workers = [mp.Process(target=work, args=(queue,), daemon=True) for _ in range(2)]
        for worker in workers:
            worker.start()
        queue.get(), queue.get()
        pids = {"head": os.getpid(), "worker": workers[0].pid, "zygote": parent_of(workers[0].pid),
                "agent": this_run().agent.pid, "launcher": os.getppid()}
        print(json.dumps(pids), flush=True)
        how = sys.argv[1]
        if how == "return":
            sys.exit(0)
        if how == "exception":
            raise RuntimeError("on purpose")
        if how == "exit":
            sys.exit(3)
        if how == "os._exit":
            os._exit(4)
        while True:
            workers[0].join(1)
            if workers[0].exitcode is not None:
                sys.exit(5)
"""


def start(site: Site, how: str, launcher: bool) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    command = [sys.executable, *(["-m", "dragon"] if launcher else []), site.write(PROGRAM), how]
    process = site.start(*command)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


@pytest.mark.parametrize("launcher", [False, True], ids=["python", "dragon"])
@pytest.mark.parametrize(("how", "code"), [("return", 0), ("exception", 1), ("exit", 3), ("os._exit", 4)])
def test_nothing_is_left_after_the_program_ends(site: Site, how: str, code: int, launcher: bool) -> None:
    process, _ = start(site, how, launcher)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert ("on purpose" in errors) == (how == "exception")
    site.assert_nothing_left()


@pytest.mark.parametrize("launcher", [False, True], ids=["python", "dragon"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_after_a_signal(site: Site, number: signal.Signals, launcher: bool) -> None:
    process, _ = start(site, "wait", launcher)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    site.assert_nothing_left()


@pytest.mark.parametrize("launcher", [False, True], ids=["python", "dragon"])
@pytest.mark.parametrize("victim", ["head", "agent", "zygote", "worker", "launcher"])
def test_nothing_is_left_after_any_one_process_is_killed(site: Site, victim: str, launcher: bool) -> None:
    if victim == "launcher" and not launcher:
        pytest.skip("plain python has no launcher")
    process, pids = start(site, "wait", launcher)
    pid = process.pid if victim == "launcher" else pids[victim]
    os.kill(pid, signal.SIGKILL)
    # Without a launcher the main program outlives the agent or zygote, until it learns that its worker is gone.
    process.communicate(timeout=60)
    site.assert_nothing_left()


STARTING = """
    import multiprocessing as mp
    import dragon

    if __name__ == "__main__":
        mp.set_start_method("dragon")
        with mp.Pool(2) as pool:
            print(pool.map(abs, range(3)))
"""


@pytest.mark.parametrize("victim", ["program", "agent", "zygote"])
def test_nothing_is_left_if_a_process_is_killed_at_any_moment_of_the_start(site: Site, victim: str) -> None:
    program = site.write(STARTING)
    for step in range(60):
        process = site.start(sys.executable, program)
        time.sleep(0.005 * step)
        runtimes = sorted(pid for pid, line in site.processes() if "dragon.agent" in line)
        place = ("agent", "zygote", "program").index(victim)
        pid = ([*runtimes, 0, 0][:2] + [process.pid])[place]  # 0: it has not started yet, or has ended
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        output, errors = process.communicate(timeout=60)
        ended = (output, process.returncode) == ("[0, 1, 2]\n", 0) or process.returncode == -signal.SIGKILL
        assert ended or "the run" in errors.splitlines()[-1], errors
    site.run(sys.executable, "-c", "from dragon.runtime.folder import sweep; sweep()")
    site.assert_nothing_left()


def test_the_agent_of_a_run_that_cannot_start_ends(site: Site) -> None:
    process = site.start(
        sys.executable,
        site.write("""
            import multiprocessing as mp
            import dragon

            mp.set_start_method("dragon")
            try:
                mp.Queue()
            except ValueError as error:
                print(error, flush=True)
            input()
            """),
        env={"DRAGON_ARENA_SIZE": "nonsense"},
        stdin=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert "'nonsense' is not a size" in process.stdout.readline()
    deadline = time.monotonic() + 60
    while any("dragon.agent" in line for _, line in site.processes()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.communicate("\n", timeout=60)
    assert process.returncode == 0


def test_leftovers_of_a_killed_run_are_removed_at_the_next_start(site: Site) -> None:
    process, _ = start(site, "wait", True)
    for pid, _ in site.processes():
        os.kill(pid, signal.SIGSTOP)
    for pid, _ in site.processes():
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert site.leftovers() != []
    done = site.python("import dragon.native as n; n.Queue().put(1)")
    assert done.returncode == 0, done.stderr
    site.assert_nothing_left()


def test_a_live_run_of_the_same_user_is_not_removed(site: Site) -> None:
    process, _ = start(site, "wait", False)
    for _ in range(3):
        done = site.python("import dragon.native as n; q = n.Queue(); q.put(1); print(q.get())")
        assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=60)


def test_a_live_run_in_another_container_is_not_removed(site: Site) -> None:
    """Run a second program in another PID namespace, as containers that share /tmp and /dev/shm do."""
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if site.run(*inside, "true").returncode != 0:
        pytest.skip("this machine does not let its users make PID namespaces")
    program = site.write(
        """
        from dragon.data import DDict
        with DDict() as ddict:
            ddict["key"] = 1
            print("ready", flush=True)
            input()
            print(ddict["key"], flush=True)
        """
    )
    live = site.start(sys.executable, program, stdin=subprocess.PIPE)
    assert live.stdout is not None
    assert live.stdout.readline() == "ready\n"
    other = site.write("from dragon.native import Queue; Queue().put(1); print('other')", "other.py")
    assert site.run(*inside, sys.executable, other).stdout == "other\n"
    assert live.communicate("\n", timeout=60)[0] == "1\n"


def test_signals_during_the_end_of_a_run_do_not_disturb_it(site: Site) -> None:
    launcher = site.start(
        sys.executable, "-m", "dragon", site.write("print('here', flush=True); input()"), stdin=subprocess.PIPE
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "here\n"
    while launcher.poll() is None:
        launcher.send_signal(signal.SIGTERM)
        time.sleep(0.005)
    assert "Traceback" not in launcher.communicate()[1]
    site.assert_nothing_left()


def test_a_run_that_cannot_be_started_leaves_nothing(site: Site) -> None:
    done = site.python("""
        import os, sys
        from dragon.native.queue import Queue
        from dragon.runtime.folder import find_runs

        sys.executable = "/no/such/python"
        try:
            Queue()
        except OSError as error:
            print(error.filename or error, find_runs())
    """)
    assert done.stderr == ""
    assert "/no/such/python" in done.stdout
    assert done.stdout.rstrip().endswith("[]")


@pytest.mark.parametrize("launcher", [True, False])
def test_all_descriptors_are_closed_before_the_garbage_collector_finds_them(site: Site, launcher: bool) -> None:
    source = """
        import multiprocessing as mp
        import dragon

        if __name__ == "__main__":
            process = mp.get_context("dragon").Process(target=print, args=("here",), kwargs={"flush": True})
            process.start()
            process.join()
    """
    command = ["-m", "dragon"] if launcher else []
    done = site.run(sys.executable, *command, site.write(source), env={"PYTHONDEVMODE": "1"})
    assert (done.stdout, done.stderr) == ("here\n", "")
