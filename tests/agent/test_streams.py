"""The output of processes, most of it stderr of members of groups, on its way through the agent."""

from __future__ import annotations

import sys
import time

import pytest

from conftest import Site

BEGIN = """
    import os, signal, subprocess, sys, time
    from dragon.native.process import ProcessTemplate
    from dragon.native.process_group import ProcessGroup
    from dragon.native.queue import Queue

    def group_of(function, *arguments):
        group = ProcessGroup()
        group.add_process(1, ProcessTemplate(function, arguments))
        group.init()
        group.start()
        return group

    def nothing():
        pass

    def write():
        sys.stderr.write("much\\n" * 100_000)

    def leave_behind(queue):
        queue.put(subprocess.Popen("yes >&2", shell=True, start_new_session=True).pid)
        time.sleep(0.5)
"""


def assert_whole(written: str) -> None:
    lines = written.splitlines()
    assert (len(lines), set(lines)) == (100_000, {"much"})


def test_a_run_continues_while_the_stderr_of_a_member_is_not_read(site: Site) -> None:
    source = (
        BEGIN
        + """
    if __name__ == "__main__":
        writer = group_of(write)
        time.sleep(0.5)
        group_of(nothing).join()
        print("served", flush=True)
        writer.join()
    """
    )
    process = site.start(sys.executable, "-m", "dragon", "-s", site.write(source))
    assert process.stdout is not None
    assert process.stdout.readline() == "served\n"
    assert_whole(process.communicate(timeout=60)[1])


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_output_is_complete_if_stderr_is_non_blocking(site: Site, nodes: str) -> None:
    source = (
        BEGIN
        + """
    if __name__ == "__main__":
        os.set_blocking(2, False)
        group_of(write).join()
    """
    )
    process = site.start(sys.executable, "-m", "dragon", "--nodes", nodes, site.write(source))
    time.sleep(1)
    assert_whole(process.communicate(timeout=60)[1])


def test_a_member_ends_although_its_descendants_still_write_to_stderr(site: Site) -> None:
    source = (
        BEGIN
        + """
    if __name__ == "__main__":
        queue = Queue()
        group_of(leave_behind, queue).join(timeout=30)
        print("joined")
        try:
            os.killpg(queue.get(), signal.SIGKILL)
        except ProcessLookupError:
            pass  # what a member leaves is ended with it, in a while
    """
    )
    done = site.dragon("-s", site.write(source))
    assert (done.returncode, done.stdout) == (0, "joined\n"), done.stderr[-1000:]
    assert set(done.stderr.splitlines()) <= {"y", ""}


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_process_blocks_while_much_of_its_output_is_unread(site: Site, nodes: str) -> None:
    source = """
        import time
        from dragon import _core
        from dragon.native.machine import System
        from dragon.native.process import Popen, Process

        def write():
            for _ in range(4000):
                print("x" * 50_000)

        if __name__ == "__main__":
            process = Process(write, stdout=Popen.PIPE, policy=System().hostname_policies()[-1])
            process.start()
            most, end = 0, time.monotonic() + 2
            while time.monotonic() < end:
                most = max(most, _core.usage()["in_use"])
                time.sleep(0.01)
            print(most < 120 * 2**20)
            read = 0
            try:
                while True:
                    read += len(process.stdout_conn.recv())
            except EOFError:
                print(read)
    """
    done = site.dragon("--nodes", nodes, site.write(source))
    assert (done.stdout, done.stderr) == (f"True\n{4000 * 50_001}\n", "")


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_output_waits_for_memory(site: Site, nodes: str) -> None:
    program = site.write("""
        import time
        from dragon.native.machine import System
        from dragon.native.process import Popen, Process
        from dragon.native.queue import Queue

        SCRIPT = "read x; sleep 0.5; i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done"

        def fill_memory():
            queue = Queue(0)
            for size in (2**20, 2**14, 2**10, 2**7, 1):
                try:
                    while True:
                        queue.put(bytes(size))
                except MemoryError:
                    pass
            return queue

        if __name__ == "__main__":
            policy = System().hostname_policies()[-1]
            process = Process("sh", ["-c", SCRIPT], stdin=Popen.PIPE, stdout=Popen.PIPE, policy=policy)
            process.start()
            process.stdin_conn.send("\\n")
            queue = fill_memory()
            time.sleep(1)
            queue.destroy()
            lines = []
            try:
                while True:
                    lines.append(process.stdout_conn.recv())
            except EOFError:
                pass
            process.join()
            print([int(line) for line in lines] == list(range(3000)))
    """)
    done = site.dragon("--nodes", nodes, program, env={"DRAGON_ARENA_SIZE": "16m"})
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_what_is_neither_text_nor_bytes_is_not_written_to_stdin(site: Site) -> None:
    program = site.write("""
        from dragon.native.process import Popen, Process

        if __name__ == "__main__":
            process = Process("cat", stdin=Popen.PIPE)
            process.start()
            for message in ("text\\n", 5, None, b"bytes\\n"):
                process.stdin_conn.send(message)
            process.stdin_conn.close()
            process.join()
    """)
    done = site.dragon(program, timeout=60)
    assert (done.returncode, done.stdout) == (0, "text\nbytes\n")
    assert "a process gets str and bytes on its stdin; an object of type int is left out" in done.stderr
    assert "an object of type NoneType is left out" in done.stderr
