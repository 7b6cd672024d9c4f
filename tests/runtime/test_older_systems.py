"""Kernels and C libraries without newer functions, as on older clusters, and in conda, uv and containers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Site

OLDER_KERNEL = Path(__file__).parents[1] / "data" / "programs" / "older_kernel.py"

# Pythons that were built for a C library of 2014 do without these, whatever the kernel.
OLDER_LIBRARY = """
    import os, signal

    del os.memfd_create, os.pidfd_open, signal.pidfd_send_signal
"""

PROGRAM = """
    import multiprocessing as mp
    import os
    import time
    import warnings
    from multiprocessing.connection import wait

    import dragon
    from dragon.native.process import Process, ProcessTemplate
    from dragon.native.process_group import ProcessGroup


    def square(number):
        return number * number


    def sleep(started):
        started.set()
        time.sleep(1000)


    def report(queue):
        queue.put(mp.parent_process().is_alive())


    if __name__ == "__main__":
        mp.set_start_method("dragon")
        with mp.Pool(2) as pool:
            print(pool.map(square, range(4)))
        queue, started = mp.Queue(), mp.Event()
        asking = mp.Process(target=report, args=(queue,))
        asking.start()
        print(queue.get())
        sleeper = mp.Process(target=sleep, args=(started,))
        sleeper.start()
        started.wait()
        print(wait([sleeper.sentinel], 0.05))
        sleeper.terminate()
        print(len(wait([sleeper.sentinel])), sleeper.join(), sleeper.exitcode)
        group = ProcessGroup()
        group.add_process(2, ProcessTemplate(square, (3,)))
        group.add_process(2, ProcessTemplate("sleep", ("0.1",)))
        group.init()
        group.start()
        group.join()
        print([code for _, code in group.exit_status])
        group.close()
        # What forks has none of its parent's threads; newer Pythons warn where there is one.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            process = Process(sleep, (started,))
            started.clear()
            process.start()
            started.wait()
            process.terminate()
            process.join()
            os._exit(-process.returncode)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
PRINTED = ["[0, 1, 4, 9]", "True", "[]", "1 None -15", "[0, 0, 0, 0]", "15"]


@pytest.fixture
def without_calls(site: Site) -> list[str | Path]:
    """The command prefix with which a program has neither newer system calls nor Python's functions for them."""
    before: list[str | Path] = [sys.executable, OLDER_KERNEL, "env", f"PYTHONPATH={site.folder}"]
    site.write(OLDER_LIBRARY, "sitecustomize.py")
    tried = subprocess.run(
        [*before, sys.executable, "-c", "import os; os.pidfd_open(1)"], capture_output=True, text=True, check=False
    )
    if "prctl" in tried.stderr:
        pytest.skip("system calls cannot be filtered here")
    assert "has no attribute 'pidfd_open'" in tried.stderr
    return before


@pytest.mark.parametrize("command", [[], ["-m", "dragon"], ["-m", "dragon", "--nodes", "2"]], ids=" ".join)
def test_programs_run_without_the_system_calls_for_process_descriptors(
    site: Site, without_calls: list[str | Path], command: list[str]
) -> None:
    done = site.run(*without_calls, sys.executable, *command, site.write(PROGRAM))
    assert done.returncode == 0, done.stderr
    assert (done.stdout.splitlines(), done.stderr) == (PRINTED, "")


def test_a_run_ends_when_its_program_is_killed(site: Site, without_calls: list[str | Path]) -> None:
    program = "import time, dragon.native as n; n.Queue().put(1); print('there', flush=True); time.sleep(1000)"
    process = site.start(*without_calls, sys.executable, site.write(program))
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    process.kill()
    process.communicate()
    site.assert_nothing_left()
