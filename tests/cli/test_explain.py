"""`dragon explain`: says why a task or a process waits, or how it failed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from conftest import Site
from peers import await_that

PROGRAM = """
    import sys, time
    from dragon.workflows.batch import Batch

    def fail(text):
        raise OSError(text)

    if __name__ == "__main__":
        with Batch(workers_per_node=1) as batch:
            batch.options(name="broken").function(fail, "no disk")
            long = batch.options(name="load").function(time.sleep, 1000)
            batch.options(name="fit").function(print, long)
            batch.options(name="large", cpus=1).function(int)
            batch.poll()
            print("ready", flush=True)
            sys.stdin.read()
            batch.terminate()
"""


@pytest.fixture
def program(site: Site) -> subprocess.Popen[str]:
    process = site.start(sys.executable, site.write(PROGRAM), stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    await_that(lambda: "(load) runs" in told(site, process, "load"), "that the first task runs")
    return process


def told(site: Site, program: subprocess.Popen[str], *what: str) -> str:
    done = site.dragon("explain", "--run", str(program.pid), *what)
    return done.stdout + done.stderr


def test_a_task_is_explained_by_its_uid_or_name(site: Site, program: subprocess.Popen[str]) -> None:
    assert "task 0-2 (fit) waits for the end of task 0-1 (load)." in told(site, program, "fit")
    assert "task 0-1 (load) runs in worker" in told(site, program, "0-1")
    assert "task 0-3 (large) waits for 1 CPU" in told(site, program, "large")
    assert "task 0-0 (broken) failed: OSError: no disk." in told(site, program, "broken")
    program.communicate(timeout=60)


def test_without_a_word_the_tasks_of_all_batches_are_counted(site: Site, program: subprocess.Popen[str]) -> None:
    assert "tasks: 0 done, 1 run, 2 wait, 1 failed" in told(site, program)
    program.communicate(timeout=60)


def test_a_process_is_explained_as_by_the_doctor(site: Site, program: subprocess.Popen[str]) -> None:
    text = told(site, program, str(program.pid))
    assert f"head (puid 4294967296, pid {program.pid}): sleeping" in text
    assert "sys.stdin.read()" in text or "py-spy" in text
    program.communicate(timeout=60)


def test_what_is_not_there_is_an_error_that_says_where_it_may_be(site: Site, program: subprocess.Popen[str]) -> None:
    text = told(site, program, "0-99")
    assert "dragon explain: there is no task or process '0-99' in run" in text
    assert "Batch(table=...)" in text
    program.communicate(timeout=60)
    assert site.dragon("explain", "--run", str(program.pid)).returncode == 1
