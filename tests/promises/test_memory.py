"""A lack of memory: an error says so, and nothing crashes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Site

FILL = """
    import dragon.native as native

    queue = native.Queue(0)
    count = 0
    try:
        while True:
            queue.put(bytes(1 << 20))
            count += 1
    except MemoryError as error:
        print(error)
    for _ in range(count):
        assert len(queue.get()) == 1 << 20
    queue.put("still in use")
    print(queue.get())
"""


def test_the_memory_error_of_a_full_arena_names_its_size_and_setting(site: Site) -> None:
    done = site.python(FILL, env={"DRAGON_ARENA_SIZE": "64M"})
    assert done.returncode == 0, done.stderr
    error, last = done.stdout.splitlines()
    assert "bytes of shared memory" in error
    assert "67108864" in error
    assert "DRAGON_ARENA_SIZE" in error
    assert last == "still in use"


@pytest.fixture
def small_group() -> Iterator[Path]:
    """Yield the folder of a new control group with a limit of 600 MiB of memory."""
    root = Path("/sys/fs/cgroup")
    folder, limit = root / "memory", "memory.limit_in_bytes"
    if not folder.is_dir():
        folder, limit = root, "memory.max"
    group = folder / f"dragon_test_{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        (group / limit).write_text(str(600 << 20))
    except OSError as error:
        group.rmdir()
        pytest.skip(f"memory of a new control group cannot be limited here: {error}")
    yield group
    group.rmdir()


def in_group(group: Path, *command: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in a control group."""
    enter = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group), *command]
    return subprocess.run(enter, check=False, input=input, capture_output=True, text=True, timeout=120)


GROW = """
def grow():
    held = [bytearray(64 << 20) for _ in range(20)]
"""


def test_a_process_that_the_kernel_kills_for_lack_of_memory_is_reported(small_group: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import multiprocessing

from dragon.native import Process
{GROW}
if __name__ == "__main__":
    multiprocessing.set_start_method("dragon")
    Process(None, ident="head")  # the agent, which has to know how many were killed before, has started then
    process = multiprocessing.Process(target=grow, name="large")
    process.start()
    process.join()
    print(process.exitcode)
"""
    )
    done = in_group(small_group, sys.executable, str(program))
    assert done.stdout == "-9\n", done.stderr
    assert "process large" in done.stderr
    assert "lack of memory: its control group has a limit of 600 MiB" in done.stderr


def test_a_program_that_the_kernel_kills_for_lack_of_memory_is_reported(small_group: Path) -> None:
    command = shutil.which("dragon", path=os.path.dirname(sys.executable))
    assert command is not None
    done = in_group(small_group, command, "-", input=f"{GROW}\ngrow()\n")
    assert done.returncode == 128 + 9
    assert "ended by SIGKILL, and the kernel kills processes for lack of memory" in done.stderr


@pytest.mark.parametrize("size", [4000, 60_000, 500_000])
def test_freed_memory_of_one_size_can_be_used_for_other_sizes(site: Site, size: int) -> None:
    program = """
        import sys
        import dragon.native as native

        queue, size = native.Queue(0), int(sys.argv[1])
        try:
            while True:
                queue.put(bytes(size))
        except MemoryError:
            while not queue.empty():
                queue.get()
        queue.put(bytes(2_000_000))
        process = native.Process("true")
        process.start()
        print(len(queue.get()), process.join())
    """
    done = site.python(program, str(size), env={"DRAGON_ARENA_SIZE": "64M"})
    assert done.stdout == "2000000 0\n", done.stderr


def test_one_object_larger_than_the_arena_is_refused(site: Site) -> None:
    done = site.python(
        """
        import dragon.native as native
        try:
            native.Queue().put(bytes(200 << 20))
        except MemoryError as error:
            print(error)
        """,
        env={"DRAGON_ARENA_SIZE": "64M"},
    )
    assert "209715" in done.stdout, done.stderr


def test_memory_of_received_arrays_is_released(site: Site) -> None:
    done = site.python(
        """
        import numpy
        import dragon.native as native
        from dragon import _core
        queue = native.Queue()
        for _ in range(100):
            queue.put(numpy.ones(1 << 20))
            array = queue.get()
            array += 1
            assert array[-1] == 2
        del array
        print(_core.usage()["in_use"] < 1 << 20, _core.usage()["committed"] < 64 << 20)
        """
    )
    assert done.stdout == "True True\n", done.stderr


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="a /dev/shm of its own takes root")
def test_a_small_dev_shm_does_not_limit_messages(site: Site) -> None:
    program = site.write(
        """
        import multiprocessing as mp
        import numpy
        import dragon

        def double(queue, result):
            result.put(queue.get() * 2)

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            queue, result = mp.Queue(), mp.Queue()
            process = mp.Process(target=double, args=(queue, result))
            process.start()
            queue.put(numpy.ones(25_000_000))
            print(result.get().sum())
            process.join()
        """
    )
    script = f"mount -t tmpfs -o size=64M none /dev/shm && exec {sys.executable} {program}"
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("mount namespaces are not permitted here")
    done = site.run("unshare", "-m", "sh", "-c", script)
    assert done.stdout == "50000000.0\n", done.stderr


@pytest.mark.parametrize("options", [[], ["--nodes", "2"]])
def test_a_group_that_failed_for_lack_of_memory_can_be_started_later(site: Site, options: list[str]) -> None:
    program = site.write(
        """
        from dragon import _core
        from dragon.infrastructure.policy import Policy
        from dragon.native.process import ProcessTemplate
        from dragon.native.process_group import DragonUserCodeError, ProcessGroup
        from dragon.native.queue import Queue
        from dragon.native.value import Value

        def fill(queue, values):
            kinds = [lambda: Value("i", 0), lambda: _core.Words(4)]  # the size of what is kept of a process
            for make in [lambda: queue.put(bytes(1 << 16)), *(lambda k=k: values.append(k()) for k in kinds)]:
                try:
                    while True:
                        make()
                except MemoryError:
                    pass

        if __name__ == "__main__":
            group = ProcessGroup(policy=Policy(placement=Policy.Placement.LOCAL))
            group.add_process(2, ProcessTemplate("true"))
            group.init()
            queue, values = Queue(0), []
            fill(queue, values)
            try:
                group.start()
                group.join(timeout=20)
            except (MemoryError, DragonUserCodeError) as error:
                print("bytes of shared memory" in str(error))
            values.clear()
            while not queue.empty():
                queue.get()
            group.start()
            group.join(timeout=20)
            print([code for _, code in group.exit_status])
            group.close()
        """
    )
    done = site.dragon(*options, program, env={"DRAGON_ARENA_SIZE": "64M"})
    assert done.stdout == "True\n[0, 0]\n", done.stderr


@pytest.mark.parametrize(("size", "count"), [(1 << 20, 250), (200, 700_000)])
def test_messages_to_a_node_with_full_memory_wait_for_space(site: Site, size: int, count: int) -> None:
    program = site.write(
        """
        import sys, time
        from dragon.infrastructure.policy import Policy
        from dragon.native.process import Process
        from dragon.native.queue import Queue

        def read(answers):
            queue = Queue(0)
            answers.put(queue)
            while queue.qsize() < int(sys.argv[3]):  # its memory is nearly full
                time.sleep(0.01)
            time.sleep(0.5)
            count = int(sys.argv[2])
            answers.put([queue.get()[0] for _ in range(count)] == list(range(count)))

        if __name__ == "__main__":
            size, count = map(int, sys.argv[1:3])
            answers = Queue()
            reader = Process(read, (answers,), policy=Policy(host_name="node-1"))
            reader.start()
            queue = answers.get()
            for number in range(count):
                queue.put((number, bytes(size)))
            print(answers.get())
        """
    )
    nearly_all = count // 3
    arena = {"DRAGON_ARENA_SIZE": "128M"}
    done = site.dragon("--nodes", "2", program, str(size), str(count), str(nearly_all), env=arena)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_messages_of_an_ended_process_wait_for_space_without_a_time_limit(site: Site) -> None:
    program = site.write(
        """
        import time
        from dragon.infrastructure.policy import Policy
        from dragon.native.process import Process
        from dragon.native.queue import Queue

        COUNT = 110  # more than fit into the memory of their node, fewer than that and what may be under way

        def read(asked, answers):
            queue = Queue(0)
            answers.put(queue)
            asked.get()
            time.sleep(12)  # longer than a process that lives is let wait
            answers.put([queue.get(timeout=60)[0] for _ in range(COUNT)] == list(range(COUNT)))

        def write(queue):
            for number in range(COUNT):
                queue.put((number, bytes(1 << 20)))

        if __name__ == "__main__":
            asked, answers = Queue(), Queue()
            reader = Process(read, (asked, answers), policy=Policy(host_name="node-1"))
            reader.start()
            queue = answers.get()
            writer = Process(write, (queue,), policy=Policy(host_name="node-0"))
            writer.start()
            writer.join()
            asked.put("all is put")
            reader.join()
            print(answers.get())
        """
    )
    arena = {"DRAGON_ARENA_SIZE": "128M"}
    done = site.dragon("--nodes", "2", program, env=arena)
    assert (done.stdout, done.stderr) == ("True\n", "")
