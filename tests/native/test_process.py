"""Native processes, through their public API; the head process is that of pytest."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragon.globalservices import process as process_service
from dragon.globalservices.process import ProcessError
from dragon.infrastructure.connection import Connection
from dragon.infrastructure.errors import NotSupportedError
from dragon.infrastructure.parameters import this_process
from dragon.infrastructure.policy import Policy, PolicyError
from dragon.native.event import Event
from dragon.native.machine import System
from dragon.native.process import MSG_DEVNULL, MSG_PIPE, MSG_STDOUT, Popen, Process, ProcessTemplate, current
from dragon.native.queue import Queue
from dragon.native.semaphore import Semaphore
from dragon.runtime.connection import Pipe


def put(queue: Queue, value: Any) -> None:
    queue.put(value)


def exit_with(code: int) -> None:
    sys.exit(code)


def raise_error() -> None:
    raise ValueError("a message of mine")


def sleep() -> None:
    time.sleep(1000)


def read_all(queue: Queue) -> None:
    queue.put(sys.stdin.read())


def describe(queue: Queue) -> None:
    me = current()
    queue.put({"puid": me.puid, "cwd": os.getcwd(), "cpus": os.sched_getaffinity(0), "env": dict(os.environ)})


def lines_of(connection: Connection) -> Iterator[str]:
    while True:
        try:
            yield connection.recv()
        except EOFError:
            return


def started(*args: Any, **kwargs: Any) -> Process:
    process = Process(*args, **kwargs)
    process.start()
    return process


def test_functions_of_every_kind_can_be_targets() -> None:
    queue = Queue()
    kept = "closed over"

    def local() -> None:
        queue.put(kept)

    arguments = (queue,), {"value": [1, "two", {3: 4.0}]}
    for target, expected in (
        ((put, *arguments), arguments[1]["value"]),
        ((local,), kept),
        ((lambda: queue.put(kept),), kept),
    ):
        process = started(*target)
        assert queue.get(timeout=30) == expected
        assert process.join() == 0


def test_a_method_of_a_shared_object_can_be_a_target() -> None:
    event, semaphore, queue = Event(), Semaphore(0), Queue()
    targets: list[tuple[Callable[..., Any], tuple[Any, ...]]]
    targets = [(event.set, ()), (semaphore.release, (2,)), (queue.put, ("sent",))]
    for target, arguments in targets:
        process = started(target, arguments)
        process.join()
        assert process.returncode == 0
    assert event.is_set()
    assert (semaphore.acquire(timeout=5), semaphore.acquire(timeout=5)) == (True, True)
    assert queue.get() == "sent"


def test_arguments_and_variables_can_be_large() -> None:
    queue = Queue()
    process = started(put, (queue, bytes(30_000_000)))
    assert len(queue.get(timeout=30)) == 30_000_000
    assert process.join() == 0
    arguments = [str(number) * 1000 for number in range(10)] * 40
    process = started("sh", ["-c", "echo $# ${#LARGE}", *arguments], stdout=Popen.PIPE, env={"LARGE": "x" * 100_000})
    assert process.stdout_conn is not None
    assert process.stdout_conn.recv() == "399 100000\n"
    assert process.join() == 0
    assert process.stdin_conn is process.stderr_conn is None  # no pipes


def test_the_exit_code_is_that_of_sys_exit() -> None:
    codes = {0: 0, 3: 3, 255: 255, 1 << 70: 255, -(1 << 70): 255}  # what is too large becomes 255, as in Python
    processes = [started(exit_with, (code,)) for code in codes]
    assert [process.join() for process in processes] == list(codes.values())


def test_an_exception_gives_exit_code_1_and_one_traceback() -> None:
    process = started(raise_error, stderr=MSG_PIPE)
    assert process.stderr_conn is not None
    assert process.join() == 1
    lines = list(lines_of(process.stderr_conn))
    assert lines[-1] == "ValueError: a message of mine\n"
    assert "".join(lines).count("Traceback") == 1


@pytest.mark.parametrize(("end", "code"), [("terminate", -signal.SIGTERM), ("kill", -signal.SIGKILL)])
def test_a_process_that_a_signal_ended_has_a_negative_exit_code(end: str, code: int) -> None:
    process = started(sleep)
    assert process.is_alive
    assert process.join(0.05) is None
    getattr(process, end)()
    assert process.join() == code
    assert not process.is_alive
    assert process.returncode == process.exitcode == code
    getattr(process, end)()  # no complaint from a process that has ended


def interrupt_myself() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1000)


def test_an_interrupted_function_ends_with_sigint_and_keyboard_interrupt() -> None:
    process = started(interrupt_myself, stderr=MSG_PIPE)
    assert process.stderr_conn is not None
    assert process.join() == -signal.SIGINT
    assert list(lines_of(process.stderr_conn))[-1] == "KeyboardInterrupt\n"


def sleep_again_and_again() -> None:
    while True:  # what comes just before a sleep does not end it
        time.sleep(0.01)


def test_an_interrupt_before_the_function_begins_ends_the_process_with_sigint() -> None:
    for _ in range(5):
        process = started(sleep_again_and_again, stderr=MSG_DEVNULL)
        process.send_signal(signal.SIGINT)
        assert process.join() == -signal.SIGINT


def test_a_process_has_its_policy_folder_and_environment(tmp_path: Path) -> None:
    queue, cpus = Queue(), sorted(os.sched_getaffinity(0))
    process = started(describe, (queue,), cwd=str(tmp_path), env={"MINE": "yes"}, policy=Policy(cpu_affinity=[cpus[0]]))
    found = queue.get(timeout=30)
    assert (found["puid"], found["cwd"], found["cpus"]) == (process.puid, str(tmp_path), {cpus[0]})
    assert (found["env"]["MINE"], found["env"]["PATH"]) == ("yes", os.environ["PATH"])
    process.join()
    with Policy(cpu_affinity=[cpus[-1]]):  # it holds for processes started in the block
        process = started(describe, (queue,))
    assert queue.get(timeout=30)["cpus"] == {cpus[-1]}
    process.join()


def test_a_function_reads_its_stdin_to_the_end() -> None:
    queue = Queue()
    process = started(read_all, (queue,), stdin=Popen.PIPE)
    assert process.stdin_conn is not None
    process.stdin_conn.send("a line\n")
    process.stdin_conn.close()
    assert queue.get(timeout=30) == "a line\n"
    process.join()


def test_an_executable_gets_its_arguments_and_streams() -> None:
    process = started("sh", ["-c", "read line; echo got $line; echo bad >&2"], stdin=-1, stdout=-1, stderr=-2)
    assert process.stdin_conn is not None
    assert process.stdout_conn is not None
    process.stdin_conn.send("a line\n")
    process.stdin_conn.close()
    assert process.stdout_conn.recv() == "got a line\n"
    assert process.stdout_conn.recv() == "bad\n"
    with pytest.raises(EOFError):
        process.stdout_conn.recv()
    assert process.join() == 0


def test_output_goes_to_a_file_or_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "out"
    for word in ("one", "two"):
        started("sh", ["-c", f"echo {word}; echo lost >&2"], stdout=str(file), stderr=-3).join()
    assert file.read_text() == "one\ntwo\n"


def test_a_process_is_found_by_name_and_puid_even_after_its_end() -> None:
    process = started(sleep, ident="a name of mine")
    assert Process(None, ident="a name of mine").puid == process.puid
    with pytest.raises(ProcessError, match="a name of mine"):
        Process.from_template(ProcessTemplate(sleep), ident="a name of mine")
    with pytest.warns(RuntimeWarning, match="a name of mine"):
        assert Process(exit_with, (0,), ident="a name of mine").puid == process.puid
    process.kill()
    process.join()
    found = Process(None, ident=process.puid)
    assert (found.name, found.returncode, found.join()) == ("a name of mine", -9, -9)
    known = process_service.query(process.puid)
    assert (known.node, known.h_uid) == (process.node, process.h_uid)


def test_live_children_of_a_process_are_those_that_have_not_ended() -> None:
    lives, has_ended = started(sleep), started(exit_with, (0,))
    has_ended.join()
    children = process_service.query(current().puid).live_children
    assert lives.puid in children
    assert has_ended.puid not in children
    lives.kill()
    lives.join()
    assert lives.puid not in process_service.query(current().puid).live_children


def test_create_returns_a_process_with_the_given_policy() -> None:
    policy = Policy(placement=Policy.Placement.LOCAL)
    made = process_service.create("true", ".", [], None, policy=policy)
    assert made.policy is policy
    assert process_service.join(made.p_uid) == 0


def end(process: Process, queue: Queue) -> None:
    alive = process.is_alive
    process.kill()
    queue.put((process.name, alive, process.join()))


def tell_of_myself(queue: Any) -> None:
    queue.put((this_process.my_puid, this_process.name, this_process.index))


def test_a_reused_name_refers_to_the_running_process() -> None:
    hosts = System().hostname_policies()
    for name, first, second in (("once", hosts[0], hosts[-1]), ("twice", hosts[-1], hosts[0])):
        started(exit_with, (7,), ident=name, policy=first).join()
        running = started(sleep, ident=name, policy=second)
        assert Process(None, ident=name).puid == running.puid
        assert process_service.join(name, timeout=0.01) is None
        process_service.kill(name)
        assert running.join() == -signal.SIGKILL


def test_this_process_has_the_puid_name_and_node_of_the_process() -> None:
    queue: Any = Queue()
    process = started(tell_of_myself, (queue,), ident="wise")
    assert queue.get(timeout=30) == (process.puid, "wise", process.node)
    assert process.join() == 0


def test_a_process_object_can_be_sent_to_another_process_that_kills_it() -> None:
    queue, process = Queue(), started(sleep, ident="sent")
    other = started(end, (process, queue))
    assert queue.get(timeout=30) == ("sent", True, -signal.SIGKILL)
    assert (process.join(), other.join()) == (-signal.SIGKILL, 0)


def test_processes_have_parents_and_children() -> None:
    process = started(sleep)
    assert process.puid in [child.puid for child in current().children()]
    assert process.parent().puid == current().puid
    with pytest.raises(ProcessError, match="head"):
        current().parent()
    process.kill()
    process.join()


def test_popen_runs_an_executable_with_a_pipe() -> None:
    process = Popen(["-c", "echo out; exit 4"], executable="/bin/sh", stdout=Popen.PIPE)
    assert process.stdout is not None
    assert process.stdout.recv() == "out\n"
    assert process.wait() == 4
    assert process.returncode == 4
    with pytest.raises(NotSupportedError, match=r"stdout\.recv"):
        process.communicate()
    with pytest.raises(TypeError, match="args must be"):
        Popen("-c", executable="/bin/sh")  # type: ignore[arg-type]


def test_multi_join_returns_ended_processes_and_statuses() -> None:
    quick, slow = started(exit_with, (0,)), started(sleep)
    ended, statuses = process_service.multi_join([quick.puid, slow.puid], timeout=30)
    assert ended == [(quick.puid, 0)]
    assert statuses == {str(quick.puid): [0, 0], str(slow.puid): [4, None]}
    assert process_service.multi_join([slow.puid], timeout=0.05) == (None, {str(slow.puid): [2, None]})
    process_service.kill(slow.puid)
    ended, statuses = process_service.multi_join({quick.puid, slow.puid}, join_all=True)
    assert process_service.get_multi_join_success_puids(statuses) == [quick.puid]
    assert process_service.get_multi_join_failure_puids(statuses) == [slow.puid]
    with pytest.raises(ProcessError):
        process_service.multi_join([])


def test_create_starts_an_executable_with_a_user_name() -> None:
    made = process_service.create("sleep", "", ["1000"], None, user_name="sleeper")
    assert process_service.create("true", "", [], None, user_name="sleeper", soft=True).p_uid == made.p_uid
    with pytest.raises(ProcessError, match="sleeper"):
        process_service.create("true", "", [], None, user_name="sleeper")
    process_service.kill("sleeper")
    assert process_service.join(made.p_uid) == -signal.SIGKILL
    assert made.p_uid in process_service.get_list()
    with pytest.raises(ProcessError, match="no_such_program"):
        process_service.create("no_such_program", "", [], None)


def test_create_connects_streams_and_checks_them_and_the_pmi(tmp_path: Path) -> None:
    written = tmp_path / "written"
    made = process_service.create(
        "sh", "", ["-c", "cat; echo two >&2"], None, stdin=MSG_PIPE, stdout=MSG_PIPE, stderr=str(written)
    )
    made.stdin_conn.send("one\n")
    made.stdin_conn.close()
    assert made.stdout_conn.recv() == "one\n"
    assert process_service.join(made.p_uid) == 0
    assert made.stderr_conn is None
    assert written.read_text() == "two\n"
    with pytest.raises(ValueError, match="stdin must be None, PIPE or DEVNULL, not -2"):
        process_service.create("true", "", [], None, stdin=MSG_STDOUT)
    assert process_service.join(process_service.create("true", "", [], None, pmi="pmix").p_uid) == 0
    with pytest.raises(ValueError, match="'pigeon' is not a valid PMIBackend"):
        process_service.create("true", "", [], None, pmi="pigeon")


def test_a_template_can_start_several_processes() -> None:
    queue = Queue()
    template = ProcessTemplate(put, (queue, 1))
    processes = [Process.from_template(template) for _ in range(3)]
    for process in processes:
        process.start()
    assert [process.join() for process in processes] == [0, 0, 0]
    assert queue.size() == 3
    with pytest.raises(NotImplementedError):
        template.start()
    assert ProcessTemplate.from_sdict(template.get_sdict()).get_original_python_parameters() == (put, (queue, 1), {})


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"target": "no_such_program_anywhere"}, AttributeError, "no_such_program_anywhere"),
        ({"target": "true", "cwd": "/no/such/folder"}, FileNotFoundError, "/no/such/folder"),
        ({"target": 3}, TypeError, "3"),
        ({"target": "echo", "args": "one"}, TypeError, "args must be"),
        ({"target": print, "args": 0}, TypeError, "args must be"),
        ({"target": print, "args": {"a": 1}}, TypeError, "args must be"),
        ({"target": "echo", "args": ["cut\0off"]}, ValueError, "NUL"),
        ({"target": "echo", "kwargs": {"n": True}}, ValueError, "keyword"),
        ({"target": "true", "env": {"A": 1}}, TypeError, "'A'"),
        ({"target": "true", "env": ["A=1"]}, TypeError, "env must map"),
        ({"target": "true", "env": {"A=B": "1"}}, ValueError, "'A=B'"),
        ({"target": "true", "env": {"A": "cut\0off"}}, ValueError, "'A'"),
        ({"target": "true", "stdout": ""}, ValueError, "non-empty"),
        ({"target": "true", "stdout": -2}, ValueError, "stdout must be None, PIPE, DEVNULL or the path of a file"),
        ({"target": print, "kwargs": [1]}, TypeError, "kwargs must map"),
        ({"target": "true", "policy": "here"}, TypeError, "here"),
    ],
)
def test_invalid_arguments_are_refused_at_the_call(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Process(**arguments)


def test_what_the_system_or_pickle_does_not_accept_is_refused_at_the_start() -> None:
    with pytest.raises(OSError, match="File name too long"):
        started(sleep, ident="x" * 10_000)
    with pytest.raises(ValueError, match=r"no file can have the name 'a\\x00b' \(stderr\)"):
        started("true", stderr="a\0b")
    with pytest.raises(TypeError, match="cannot pickle"):
        started(put, (threading.Lock(),))
    for args, env, text in ((["cut\0off"], None, "NUL"), ([], {"A=B": "1"}, "'A=B'"), ([], {"A": "cut\0off"}, "'A'")):
        with pytest.raises(ValueError, match=text):
            process_service.create("echo", ".", args, env)  # type: ignore[arg-type]


def test_a_file_that_is_not_executable_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a program")
    with pytest.raises(PermissionError, match=r"notes\.txt"):
        Process(str(file))
    file.chmod(0o755)
    with pytest.raises(OSError, match="Exec format error"):
        Process(str(file)).start()


def test_an_unknown_host_is_refused_with_the_names_of_the_hosts() -> None:
    policy = Policy(placement=Policy.Placement.HOST_NAME, host_name="nowhere")
    with pytest.raises(ProcessError, match=r"nowhere.*there is"):
        Process(sleep, policy=policy).start()
    with pytest.raises(PolicyError):
        Policy(cpu_affinity="0")  # type: ignore[arg-type]


def test_a_second_start_and_a_join_before_the_start_raise_errors() -> None:
    process = Process(exit_with, (0,))
    with pytest.raises(ProcessError):
        process.join()
    process.start()
    with pytest.raises(RuntimeError, match=str(process.puid)):
        process.start()
    process.join()
    with pytest.raises(ProcessError, match="no process"):
        Process(None, ident="never heard of")
    with pytest.raises(NotImplementedError):
        type("Mine", (Process,), {})


class SendsWhenItIsPickled:
    """An argument that sends a message while it is pickled, as a finalizer of the garbage collector may."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def __reduce__(self) -> tuple[type[int], tuple[()]]:
        reader, _ = Pipe(duplex=False)
        self.queue.put(reader)
        return int, ()


def test_a_message_sent_during_pickling_does_not_keep_its_connection() -> None:
    queue = Queue()
    process = Process(abs, (SendsWhenItIsPickled(queue),))
    process.start()
    assert process.join() == 0
    with pytest.raises(EOFError):
        queue.get(timeout=30).recv()


def test_processes_with_stdin_pipes_leave_no_descriptors() -> None:
    def run() -> int:
        process = Process("true", stdin=MSG_PIPE)
        process.start()
        process.join()
        return len(os.listdir("/proc/self/fd"))

    before = run()
    for _ in range(20):
        run()
    assert run() < before + 5


@pytest.mark.parametrize("target", [sleep, "true"])
def test_the_error_of_a_process_that_cannot_start_names_the_missing_folder(
    target: Callable[[], None] | str, tmp_path: Path
) -> None:
    folder = tmp_path / "removed"
    folder.mkdir()
    process = Process(target, cwd=str(folder))
    folder.rmdir()
    with pytest.raises(FileNotFoundError, match=f"cannot start dragon_process_.*'{folder}'"):
        process.start()
    output = str(folder / "output")
    with pytest.raises(FileNotFoundError, match=f"cannot start dragon_process_.*'{output}'"):
        Process(target, stdout=output).start()
