"""multiprocessing.shared_memory: a block exists until it is unlinked, even after the end of processes that were
attached to it.
"""

from __future__ import annotations

import os
import sys
import time

import pytest

import dragon  # noqa: F401 - makes "dragon" a start method
from conftest import Site


@pytest.fixture
def program(site: Site) -> str:
    source = """
        import multiprocessing as mp
        from multiprocessing.shared_memory import SharedMemory
        import dragon

        def add(name):
            block = SharedMemory(name)
            block.buf[0] += 1
            block.close()

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            with mp.Pool(2) as pool:
                block = SharedMemory(create=True, size=10)
                pool.map(add, [block.name])
                pool.close()
                pool.join()
            for _ in range(3):
                process = mp.Process(target=add, args=(block.name,))
                process.start()
                process.join()
            print(block.buf[0])
            block.close()
            block.unlink()
    """
    return str(site.write(source))


def test_a_block_outlasts_workers_that_were_started_before_it(site: Site, program: str) -> None:
    done = site.run(sys.executable, program)
    assert (done.stdout, done.stderr) == ("4\n", "")


def test_a_block_outlasts_processes_of_other_simulated_nodes(site: Site, program: str) -> None:
    done = site.dragon("--nodes", "2", program)
    assert (done.stdout, done.stderr) == ("4\n", "")


PRELUDE = """
    import multiprocessing as mp, os, select, signal
    from multiprocessing.shared_memory import SharedMemory
    import dragon
    import psutil
    from dragon.runtime.run import end, this_run

    def make(queue):
        block = SharedMemory(create=True, size=10)
        queue.put(block.name)

    def trackers():
        agent = psutil.Process(this_run().agent.pid)
        return [each for each in agent.children() if "multiprocessing.resource_tracker" in " ".join(each.cmdline())]

    def start(target=print, *args):
        process = mp.get_context("dragon").Process(target=target, args=args)
        process.start()
        process.join()
"""


@pytest.mark.parametrize("command", [[], ["-m", "dragon"]])
def test_no_tracker_is_started_before_a_program_shares_memory(site: Site, command: list[str]) -> None:
    program = """
    if __name__ == "__main__":
        start()
        print(trackers())
        SharedMemory(create=True, size=10).unlink()
        while not trackers():
            pass
    """
    done = site.run(sys.executable, *command, site.write(PRELUDE + program))
    assert (done.stdout, done.stderr) == ("\n[]\n", "")


@pytest.mark.parametrize("command", [[], ["-m", "dragon"]])
@pytest.mark.parametrize("how", ["return", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_leftovers_of_a_program_and_its_processes_are_removed(site: Site, command: list[str], how: str) -> None:
    program = f"""
    def main():
        queue = mp.get_context("dragon").Queue()
        start(make, queue)
        print(queue.get(), SharedMemory(create=True, size=10).name, flush=True)
        {how}

    if __name__ == "__main__":
        main()
    """
    done = site.run(sys.executable, *command, site.write(PRELUDE + program))
    names = done.stdout.split()
    assert len(names) == 2, done.stderr
    deadline = time.monotonic() + 30
    while any(os.path.exists(f"/dev/shm/{name}") for name in names) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(os.path.exists(f"/dev/shm/{name}") for name in names)


@pytest.mark.parametrize("before", ["", "SharedMemory(create=True, size=10).unlink()"])
def test_a_program_can_share_memory_after_the_end_of_its_run(site: Site, before: str) -> None:
    program = f"""
    if __name__ == "__main__":
        start()
        {before or "pass"}
        end()
        SharedMemory(create=True, size=10).unlink()
        start()
        SharedMemory(create=True, size=10).unlink()
        print("done")
    """
    done = site.run(sys.executable, site.write(PRELUDE + program))
    assert (done.stdout, done.stderr) == ("\n\ndone\n", "")


def test_a_program_can_start_a_new_run_after_its_agent_was_killed(site: Site) -> None:
    program = """
    if __name__ == "__main__":
        start()
        agent = os.pidfd_open(this_run().agent.pid)
        signal.pidfd_send_signal(agent, signal.SIGKILL)
        select.select([agent], [], [])
        end()
        start()
        SharedMemory(create=True, size=10).unlink()
        print("done")
    """
    done = site.run(sys.executable, site.write(PRELUDE + program))
    assert done.stdout == "\n\ndone\n", done.stderr
    assert "resource_tracker" not in done.stderr


def test_the_output_of_a_program_within_a_run_ends_with_the_program(site: Site) -> None:
    site.write(
        """
        import multiprocessing as mp
        import dragon

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            process = mp.Process(target=print, args=("inner",))
            process.start()
            process.join()
        """,
        "inner.py",
    )
    outer = site.write("""
        import subprocess, sys

        for _ in range(2):
            print(subprocess.run([sys.executable, "inner.py"], capture_output=True, text=True).stdout, end="")
        """)
    assert site.dragon(outer).stdout == "inner\ninner\n"


def test_the_tracker_can_be_stopped_with_the_standard_librarys_method(site: Site) -> None:
    """Stop it as CPython's own tests do, although the tracker is not a child of the process."""
    program = """
    if __name__ == "__main__":
        from multiprocessing import resource_tracker
        start()
        SharedMemory(create=True, size=10).unlink()
        resource_tracker._resource_tracker._stop()
        SharedMemory(create=True, size=10).unlink()
        print("done")
    """
    done = site.run(sys.executable, site.write(PRELUDE + program))
    assert (done.stdout, done.stderr) == ("\ndone\n", "")
