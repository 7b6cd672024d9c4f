"""A limit of processes: an error names it, and the run continues when the limit allows processes again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Site

LIMITED = """
    import os, resource, select, signal, sys, time
    import dragon
    from dragon.infrastructure.errors import DragonError
    from dragon.native.process import Process, ProcessTemplate
    from dragon.native.process_group import DragonUserCodeError, ProcessGroup
    from dragon.native.queue import Queue
    from dragon.runtime.run import this_run

    _, HARD = resource.getrlimit(resource.RLIMIT_NPROC)

    def allow(pid, count):
        resource.prlimit(pid, resource.RLIMIT_NPROC, (count, HARD))

    def tell(queue):
        queue.put((os.getpid(), os.getppid()))

    def stay(queue):
        queue.put(os.getpid())
        time.sleep(1000)

    def the_zygote():
        queue = Queue()
        process = Process(tell, (queue,))
        process.start()
        process.join()
        return queue.get()[1]
"""


NOBODY = 60000 + os.getpid() % 5000  # whom nobody else is at the same time


@pytest.fixture
def somebody() -> Iterator[list[str]]:
    """The command prefix that runs a program as a user other than root, whose processes can be limited."""
    if os.getuid() != 0:
        yield []
        return
    command = ["setpriv", f"--reuid={NOBODY}", "--clear-groups"]
    rights = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]  # Python may be in root's own folder
    if not shutil.which("setpriv") or subprocess.run([*command, *rights, "true"], check=False).returncode:
        pytest.skip("this machine does not let root become another user")
    yield [*command, *rights]


@pytest.fixture
def site() -> Iterator[Site]:
    """A site outside root's folders; nothing may be left in it."""
    place = Site(Path(tempfile.mkdtemp()))
    place.shared = set(os.listdir("/dev/shm"))
    if os.getuid() == 0:
        place.users.add(NOBODY)
        for folder in (place.folder, Path(place.environment["XDG_RUNTIME_DIR"])):
            os.chown(folder, NOBODY, NOBODY)
    yield place
    place.assert_nothing_left()
    shutil.rmtree(place.folder)


def test_the_error_about_a_process_that_cannot_be_created_names_the_limit(site: Site, somebody: list[str]) -> None:
    program = """
    def group():
        group = ProcessGroup()
        group.add_process(2, ProcessTemplate("true"))
        group.init()
        group.start()
        try:
            group.join()
        except DragonUserCodeError as error:
            print("ulimit -u" in str(error))
        group.close()

    if __name__ == "__main__":
        zygote = the_zygote()
        allow(zygote, 0)
        for target in (print, "true"):
            try:
                Process(target).start()
            except BlockingIOError as error:
                print("ulimit -u" in str(error))
        group()
        allow(zygote, HARD)
        process = Process("true")
        process.start()
        print(process.join())
    """
    done = site.run(*somebody, sys.executable, site.write(LIMITED + program))
    assert (done.stdout, done.stderr) == ("True\nTrue\nTrue\n0\n", "")


def test_a_member_that_cannot_be_restarted_at_once_is_restarted_later(site: Site, somebody: list[str]) -> None:
    program = """
    if __name__ == "__main__":
        zygote, queue = the_zygote(), Queue()
        group = ProcessGroup(restart=True)
        group.add_process(1, ProcessTemplate(stay, (queue,)))
        group.init()
        group.start()
        first = queue.get()
        allow(zygote, 0)
        os.kill(first, signal.SIGKILL)
        while 127 not in [code for _, code in group.exit_status]:
            time.sleep(0.01)
        allow(zygote, HARD)
        print(queue.get(timeout=30) != first)
        group.stop_restart()
        group.kill()
        group.join()
        group.close()
    """
    done = site.run(*somebody, sys.executable, site.write(LIMITED + program))
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_worker_that_cannot_be_replaced_at_once_is_replaced_later(site: Site, somebody: list[str]) -> None:
    program = """
    from dragon.native.pool import Pool

    def pid(_):
        time.sleep(0.1)
        return os.getpid()

    if __name__ == "__main__":
        zygote = the_zygote()
        pool = Pool(2)
        first = set(pool.map(pid, range(20), chunksize=1))
        allow(zygote, 0)
        for worker in first:
            os.kill(worker, signal.SIGKILL)
        late = pool.map_async(pid, range(20), chunksize=1)
        time.sleep(1.5)
        allow(zygote, HARD)
        later = set(late.get(timeout=60))
        print(len(first), len(later), first & later)
        pool.close()
        pool.join()
    """
    done = site.run(*somebody, sys.executable, site.write(LIMITED + program))
    assert (done.stdout, done.stderr) == ("2 2 set()\n", "")


@pytest.mark.parametrize("room", [1, 2, 3])
def test_a_run_that_exceeds_the_limit_ends_with_an_error_that_names_it(
    site: Site, somebody: list[str], room: int
) -> None:
    program = """
    if __name__ == "__main__":
        allow(os.getpid(), int(sys.argv[1]))  # the agent has it too
        for _ in range(3):
            try:
                Process("true").start()
            except Exception as error:
                print(error)
    """
    done = site.run(*somebody, sys.executable, site.write(LIMITED + program), str(room))
    assert done.stdout.count("\n") == 3, done.stderr
    assert "ulimit -u" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [[], ["--nodes", "2"]])
def test_the_error_of_a_command_that_exceeds_the_limit_names_it(
    site: Site, somebody: list[str], options: list[str]
) -> None:
    program = site.write("print('not reached')")
    limited = [*somebody, "prlimit", "--nproc=1", sys.executable, "-m", "dragon"]
    done = site.run(*limited, *options, program)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("dragon: ")
    assert "ulimit -u" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_run_ends_without_errors_if_its_agent_cannot_start_threads(site: Site, somebody: list[str]) -> None:
    program = """
    if __name__ == "__main__":
        the_zygote()
        allow(this_run().agent.pid, 0)
    """
    done = site.run(*somebody, sys.executable, site.write(LIMITED + program))
    assert done.stderr == ""


def test_every_start_after_the_end_of_the_run_raises_run_ended_error(site: Site, somebody: list[str]) -> None:
    program = """
    if __name__ == "__main__":
        zygote = os.pidfd_open(the_zygote())
        os.kill(this_run().agent.pid, signal.SIGKILL)
        select.select([zygote], [], [])
        for _ in range(3):
            try:
                Process("true").start()
            except DragonError as error:
                print(type(error).__name__)
    """
    done = site.run(*somebody, sys.executable, site.write(LIMITED + program))
    assert done.stdout == "RunEndedError\n" * 3, done.stderr
