"""Process groups."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import Site
from dragon.globalservices.process import kill, query
from dragon.infrastructure.connection import Connection
from dragon.native import process_group as pg
from dragon.native.event import Event
from dragon.native.process import MSG_DEVNULL, MSG_PIPE, Process, ProcessTemplate
from dragon.native.process_group import DragonUserCodeError, ProcessGroup
from dragon.native.queue import Queue

Wait = Callable[..., None]


def put(queue: Queue, value: Any) -> None:
    queue.put(value)


def fail(code: int, text: str) -> None:
    print(text, file=sys.stderr)
    sys.exit(code)


def sleep() -> None:
    time.sleep(1000)


def ignore_interrupts(queue: Queue) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    queue.put("ready")
    time.sleep(1000)


@contextmanager
def group(*templates: tuple[int, ProcessTemplate], **settings: Any) -> Iterator[ProcessGroup]:
    """Start a group, and close it after the block."""
    result = ProcessGroup(**settings)
    for count, template in templates:
        result.add_process(count, template)
    result.init()
    result.start()
    yield result
    result.close()


def test_several_templates_run_together_and_after_the_block_of_their_group() -> None:
    queue, large = Queue(), [str(number) * 1000 for number in range(10)] * 40
    with ProcessGroup() as members:
        members.add_process(2, ProcessTemplate(put, (queue, "a")))
        members.add_process(1, ProcessTemplate(put, (queue, "b")))
        members.add_process(1, ProcessTemplate("sh", ["-c", "test $# = 399", *large]))
        members.init()
        members.start()
    members.join()
    assert sorted(queue.get() for _ in range(3)) == ["a", "a", "b"]
    assert [code for _, code in members.exit_status] == [code for _, code in members.inactive_puids] == [0] * 4
    assert members.puids == []
    members.close()


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (signal.SIGRTMIN + 3, r"SIGRTMIN\+3")])
def test_a_member_that_a_signal_ends_is_reported_by_it(number: int, name: str) -> None:
    with (
        group((1, ProcessTemplate("sh", ["-c", f"kill -{number} $$"]))) as members,
        pytest.raises(DragonUserCodeError, match=f"ended with signal {name}"),
    ):
        members.join(30)


def test_puids_after_the_start_are_those_of_all_members_in_order() -> None:
    with group((3, ProcessTemplate(sleep))) as members:
        names = [query(puid).name for puid in members.puids]
        assert [name.rpartition("-")[2] for name in names] == ["0", "1", "2"]
        members.kill()
        members.join()


def test_the_first_failure_is_reported_with_rank_code_and_last_lines_or_ignored() -> None:
    with group((1, ProcessTemplate(sleep)), (1, ProcessTemplate(fail, (3, "the reason why")))) as members:
        with pytest.raises(DragonUserCodeError, match=r"exit codes: \[3\].*(?s:rank 1.*exit code 3.*the reason why)"):
            members.join(timeout=30)
        assert members.in_error_state
        members.stop()
    with group((2, ProcessTemplate(fail, (3, ""))), ignore_error_on_exit=True) as members:
        members.join()
        assert [code for _, code in members.inactive_puids] == [3, 3]


def test_a_group_may_be_started_again() -> None:
    queue = Queue()
    with group((2, ProcessTemplate(put, (queue, 1)))) as members:
        members.join()
        members.start()
        members.join()
        assert queue.size() == 4


def test_members_are_restarted_until_stop_restart_and_again_after_a_start() -> None:
    queue = Queue()
    with group((1, ProcessTemplate(put, (queue, 1))), restart=True) as members:
        for _ in range(4):
            queue.get(timeout=30)
        members.stop()
        while not queue.empty():
            queue.get()
        members.start()
        assert [queue.get(timeout=30) for _ in range(3)] == [1, 1, 1]
        members.stop_restart()
        members.join(timeout=30)
        assert len(members.inactive_puids) >= 3


def test_a_killed_member_is_restarted(wait_until: Wait) -> None:
    with group((2, ProcessTemplate(sleep)), restart=True) as members:
        from dragon.globalservices import process

        before = members.puids
        process.kill(before[0])
        wait_until(lambda: len(now := members.puids) == 2 and now[0] != before[0])
        assert members.puids[1] == before[1]
        members.stop()


def test_a_member_whose_program_was_removed_raises_an_error_instead_of_a_restart(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\nrm {program}\n")
    program.chmod(0o755)
    with group((1, ProcessTemplate(str(program))), restart=True) as members:
        with pytest.raises(DragonUserCodeError, match=rf"could not be started: .*{program}"):
            members.join(timeout=30)
        assert [code for _, code in members.inactive_puids] == [0, 127]


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_stopped_members_end_without_output(site: Site, nodes: str) -> None:
    program = site.write(
        """
        import time

        from dragon.native.process import ProcessTemplate
        from dragon.native.process_group import ProcessGroup
        from dragon.native.queue import Queue

        def sleep(queue):
            queue.put("begun")
            while True:
                time.sleep(0.01)

        if __name__ == "__main__":
            queue = Queue()
            group = ProcessGroup()
            group.add_process(10, ProcessTemplate(sleep, (queue,)))
            group.init()
            group.start()
            for _ in range(10):
                queue.get(timeout=30)
            group.stop()
            group.close()
        """
    )
    done = site.dragon("--nodes", nodes, program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_stop_sends_stronger_signals_after_its_patience() -> None:
    queue = Queue()
    with group((2, ProcessTemplate(ignore_interrupts, (queue,)))) as members:
        assert [queue.get(timeout=30) for _ in range(2)] == ["ready", "ready"]
        members.stop(patience=0.1)
        members.join()  # ended by us: no failure of theirs
        assert {code for _, code in members.exit_status} <= {-signal.SIGTERM, -signal.SIGKILL}


@pytest.mark.parametrize(("sig", "error"), [("x", TypeError), (None, TypeError), (999, ValueError), (-1, ValueError)])
def test_an_invalid_signal_is_sent_to_no_member(sig: Any, error: type[Exception]) -> None:
    with group((1, ProcessTemplate(sleep))) as members:
        (puid,) = members.puids
        for send in (members.send_signal, Process(None, ident=puid).send_signal, functools.partial(kill, puid)):
            with pytest.raises(error, match=f"not {sig!r}|no signal {sig}: the numbers go up to 64"):
                send(sig)
        assert members.puids == [puid]
        members.stop()


def test_walltime_ends_the_group() -> None:
    with group((2, ProcessTemplate(sleep)), walltime=0.3) as members:
        members.join(timeout=30)
        assert [code for _, code in members.exit_status] == [-9, -9]


def test_a_timeout_of_join_names_the_running_members() -> None:
    with group((1, ProcessTemplate(sleep))) as members, pytest.raises(TimeoutError, match=str(members.puids[0])):
        members.join(timeout=0.05)


def test_other_processes_may_use_a_group() -> None:
    queue = Queue()
    with (
        group((1, ProcessTemplate(sleep))) as members,
        group((1, ProcessTemplate(_kill_group, (members, queue)))) as watcher,
    ):
        assert queue.get(timeout=30) == members.puids or members.puids == []
        members.join(timeout=30)
        watcher.join()
    with pytest.raises(ValueError, match="init"):
        pickle.dumps(ProcessGroup())


def _kill_group(members: ProcessGroup, queue: Queue) -> None:
    queue.put(members.puids)
    members.kill()


def test_a_process_can_follow_a_group_that_it_received_before_the_start() -> None:
    queue, started = Queue(), Event()
    members = ProcessGroup()
    members.add_process(1, ProcessTemplate(sleep))
    members.add_process(1, ProcessTemplate(fail, (3, "")))
    members.init()
    with pytest.raises(pg.DragonProcessGroupSignalError, match="not started"):
        members.kill()
    follower = Process(_follow, (members, started, queue))
    follower.start()
    members.start()
    started.set()
    assert queue.get(timeout=30) == 2
    assert "exit codes: [3]" in queue.get(timeout=30)
    assert follower.join() == 0
    members.close()


def _follow(members: ProcessGroup, started: Event, queue: Queue) -> None:
    started.wait()
    # As a set: the member that fails may end between the two.
    queue.put(len({*members.puids, *(puid for puid, _ in members.inactive_puids)}))
    try:
        members.join()
    except DragonUserCodeError as error:
        queue.put(str(error))


def test_members_run_on_the_processors_of_their_policies(tmp_path: Path) -> None:
    from dragon.infrastructure.policy import Policy

    cpus = sorted(os.sched_getaffinity(0))
    queue = Queue()
    with group(
        (1, ProcessTemplate(_affinity, (queue,), policy=Policy(cpu_affinity=[cpus[-1]]))),
        (1, ProcessTemplate(_affinity, (queue,))),
        policy=Policy(cpu_affinity=[cpus[0]]),
    ) as members:
        members.join()
        assert sorted(queue.get() for _ in range(2)) == sorted([[cpus[0]], [cpus[-1]]])


def _affinity(queue: Queue) -> None:
    queue.put(sorted(os.sched_getaffinity(0)))


def test_members_can_be_joined_by_their_puids_after_the_start() -> None:
    with group((100, ProcessTemplate("true"))) as members:
        assert [Process(None, ident=puid).join() for puid in reversed(members.puids)] == [0] * 100


def test_members_output_can_be_read_by_one_process_after_another() -> None:
    with group(
        (2, ProcessTemplate("sh", ["-c", "seq 1 3; echo bad >&2"], stdout=MSG_PIPE, stderr=MSG_PIPE)),
        (1, ProcessTemplate("true", stdout=MSG_DEVNULL)),
    ) as members:
        first, second, silent = (Process(None, ident=puid) for puid in members.puids)
        assert silent.stdout_conn is None
        answers = Queue()
        for member in (first, second):
            assert member.stdout_conn is not None
            assert member.stdout_conn.recv() == "1\n"
            reader = Process(_read, (member.stdout_conn, answers))
            reader.start()
            reader.join()
            assert answers.get() == ["2\n", "3\n"]
        members.join()
        assert first.stderr_conn is not None
        assert first.stderr_conn.recv() == "bad\n"


def _read(connection: Connection, answers: Queue) -> None:
    lines = []
    try:
        while True:
            lines.append(connection.recv())
    except EOFError:
        answers.put(lines)


def test_a_group_ends_before_its_output_is_read() -> None:
    with group((1, ProcessTemplate("seq", ["1", "100000"], stdout=MSG_PIPE))) as members:
        members.join(timeout=60)
        ((puid, _),) = members.exit_status
        connection = Process(None, ident=puid).stdout_conn
        assert connection is not None
        assert sum(int(connection.recv()) for _ in range(100_000)) == 100_000 * 100_001 // 2


def test_a_member_reads_the_lines_sent_to_its_stdin_until_it_is_closed() -> None:
    templates = [ProcessTemplate(*command, stdin=MSG_PIPE, stdout=MSG_PIPE) for command in (("cat",), ("head", ["-1"]))]
    with group(*((1, template) for template in templates)) as members:
        for puid, closes in zip(members.puids, (True, False), strict=True):
            member = Process(None, ident=puid)
            assert member.stdin_conn is not None
            assert member.stdout_conn is not None
            member.stdin_conn.send("hello\n")
            assert member.stdout_conn.recv() == "hello\n"
            if closes:
                member.stdin_conn.close()
        members.join(timeout=30)


def test_calls_in_the_wrong_state_and_invalid_arguments_raise_errors() -> None:
    empty = ProcessGroup()
    with pytest.raises(pg.DragonProcessGroupStartError, match="no templates"):
        empty.init()
    with pytest.raises(pg.DragonProcessGroupStartError, match="init"):
        empty.start()
    with pytest.raises(pg.DragonProcessGroupSignalError):
        empty.kill()
    with group((1, ProcessTemplate(sleep))) as members:
        before = members.puids
        members.init()  # as programs for dragonhpc do with a CollectiveGroup
        assert members.puids == before
        with pytest.raises(pg.DragonProcessGroupAlreadyInitialized):
            members.add_process(1, ProcessTemplate(sleep))
        with pytest.raises(pg.DragonProcessGroupError, match="running"):
            members.start()
        members.close()
    with pytest.raises(pg.DragonProcessGroupRunningError):
        members.join()
    with pytest.raises(RuntimeError, match="PMI"):
        ProcessGroup(pmi="carrier pigeon")
    with pytest.raises(ValueError, match="nproc"):
        ProcessGroup().add_process(0, ProcessTemplate(sleep))
    for walltime in (-1, "x"):
        with pytest.raises(ValueError, match=f"walltime must be a positive number of seconds, not {walltime!r}"):
            ProcessGroup(walltime=walltime)  # type: ignore[arg-type]
