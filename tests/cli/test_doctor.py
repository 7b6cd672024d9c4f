"""`dragon doctor`: reports the waits of a run."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hanging import Program, running

import dragon
from conftest import Site
from dragon.cli import doctor as diagnosis
from dragon.cli import doctor as stacks
from dragon.cli.ps import report_of
from dragon.runs import Node
from dragon.runtime.folder import Owner
from dragon.runtime.run_info import RunInfo
from peers import await_that

HANGING = """
    import json, os, threading, time
    import multiprocessing as mp
    import dragon
    from dragon.native.process import Process

    def hold(lock, queue, here):
        with lock:
            here.put(os.getpid())
            queue.get()

    def sleep(here):
        here.put(os.getpid())
        time.sleep(1000)

    if __name__ == "__main__":
        mp.set_start_method("dragon")
        lock, queue, here, full = mp.Lock(), mp.Queue(), mp.Queue(), mp.Queue(1)
        full.put(1)
        pids = {"head": os.getpid()}
        workers = []
        for name, target, args in (
            ("holder", hold, (lock, queue, here)),
            ("sleeper", sleep, (here,)),
        ):
            workers.append(mp.Process(target=target, args=args, name=name, daemon=True))
            workers[-1].start()
            pids[name] = here.get()
        workers.append(mp.Process(target=lock.acquire, name="waiter", daemon=True))
        workers[-1].start()
        program = Process("sleep", ["1000"], ident="program")
        program.start()
        threading.Thread(target=full.put, args=(2,), name="putter", daemon=True).start()
        print(json.dumps(pids), flush=True)
        workers[0].join()
"""


def findings(program: Program, node: int = 0) -> dict[str, Any]:
    """Return the findings of a node by the names of processes."""
    told = program.ask("doctor")["nodes"][node]["findings"]
    return {finding["row"]["name"]: finding for finding in told}


def texts(finding: Any) -> list[str]:
    return [wait["text"] for wait in finding["waits"]]


def test_every_wait_is_reported_with_its_object_and_the_holder(site: Site) -> None:
    with running(site, HANGING) as program:
        found = findings(program)
        assert texts(found["waiter"])[0].endswith(f"held by holder (pid {program.pids['holder']})")
        assert "to acquire the lock made at program.py:" in texts(found["waiter"])[0]
        (waits,) = texts(found["holder"])
        assert "for something in the queue made at program.py:" in waits
        assert "which is empty; head" in waits
        joins, puts = sorted(texts(found["head"]))
        assert joins.startswith("for the end of holder (puid ")
        assert "to put into the queue made at program.py:" in puts
        assert "which holds 1 of 1" in puts
        assert all(wait["seconds"] > 0 for wait in found["head"]["waits"])


def test_processes_that_wait_in_the_runtime_send_their_stacks(site: Site) -> None:
    with running(site, HANGING) as program:
        found = findings(program)
        threads = {name: (ident, frames) for ident, name, frames in found["head"]["threads"]}
        assert set(threads) == {"MainThread", "putter"}
        ours = [frame for frame in threads["MainThread"][1] if frame[1].endswith("program.py")]
        assert [(function, line) for function, _, line in ours] == [("<module>", HANGING.count("\n"))]
        assert {wait["thread"] for wait in found["head"]["waits"]} == {ident for ident, _ in threads.values()}


def test_the_text_shows_the_calls_of_the_program_with_their_source(site: Site) -> None:
    with running(site, HANGING) as program:
        text = site.dragon("doctor", str(program.process.pid)).stdout
        part = text[text.index("\nholder (puid ") :]
        part = part[: part.index("\n\n")]
        assert f'File "{site.folder / "program.py"}", line 10, in hold' in part
        assert part.rstrip().endswith("queue.get()")
        assert "zygote" not in part  # whose fork it is
        assert "agent (" in text.replace("(agent)", "agent")
        assert "it answers; live processes: 5, being started: 0" in text


def test_processes_without_stacks_are_reported_with_their_state_in_the_kernel(site: Site) -> None:
    with running(site, HANGING) as program:
        found = findings(program)
        assert found["sleeper"]["kernel"].startswith("it waits")
        assert found["program"]["no_stacks"] == "it is not a Python process"


def test_a_message_says_how_to_install_missing_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    row = diagnosis.Row(None, os.getpid(), "me", "process", 0, "running", 0.0, 0)
    threads, reason = diagnosis.spied(None, row)
    assert threads == []
    assert "pip install py-spy" in reason


def test_py_spy_reads_the_stacks_of_others(site: Site) -> None:
    if stacks.find_spy() is None:
        pytest.skip("py-spy is not installed")
    with running(site, HANGING) as program:
        (_, _, frames) = findings(program)["sleeper"]["threads"][0]
        assert frames[-1][0] == "sleep"


def test_other_processes_are_reported_although_the_agent_is_stopped(site: Site) -> None:
    with running(site, HANGING) as program:
        agent = program.ask("ps")["run"]["nodes"][0]["agent"]
        os.kill(agent, signal.SIGSTOP)
        try:
            assert "does not answer within 2 s" in site.dragon("doctor").stdout
            told = program.ask("doctor")["nodes"][0]
        finally:
            os.kill(agent, signal.SIGCONT)
        assert told["silence"] == "does not answer within 2 s"
        by_pid = {finding["row"]["pid"]: finding for finding in told["findings"]}
        assert f"kill -CONT {agent}" in by_pid[agent]["kernel"]
        assert by_pid[program.pids["holder"]]["threads"]


def test_the_users_processes_come_before_those_of_the_runtime(site: Site) -> None:
    with running(site, HANGING) as program:
        titles = re.findall(r"^(\S.*) \(.*pid \d+\): ", site.dragon("doctor", program.name).stdout, re.MULTILINE)
        assert titles[-2:] == ["(agent)", "(zygote)"]
        assert "head" in titles[:-2]


def test_an_agent_of_another_version_is_reported_with_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def ask(*_: object) -> None:
        raise msgspec.ValidationError("Expected `object`, got `array`")

    info = RunInfo(Owner(1, 1), Owner(1, 1), 5)
    tmp_path.chmod(0o700)
    info.write(tmp_path)
    assert RunInfo.read(tmp_path).version == dragon.__version__
    monkeypatch.setattr("dragon.cli.ps.ask_agent", ask)
    assert report_of(Node(tmp_path, info._replace(version="0.0.9"))).startswith(
        f"runs dragon 0.0.9, and this is {dragon.__version__}: use "
    )


def test_a_stopped_process_is_reported(site: Site) -> None:
    with running(site, HANGING) as program:
        holder = program.pids["holder"]
        os.kill(holder, signal.SIGSTOP)
        told = program.ask("doctor")["nodes"][0]
        finding = next(f for f in told["findings"] if f["row"]["pid"] == holder)
        assert f"kill -CONT {holder}" in finding["kernel"]
        assert texts(finding)
        assert f"the stacks of {holder}: these processes wait in the runtime and did not answer" in told["troubles"][0]


BUSY = """
    import json, os, time
    from pathlib import Path
    from dragon.native import Process, Queue

    def work(queue):
        queue.get()
        Path("busy").touch()
        sum(range(10**12))  # keeps the GIL, for hours

    if __name__ == "__main__":
        queue = Queue()
        worker = Process(work, (queue,), ident="worker")
        worker.start()
        print(json.dumps({"head": os.getpid()}), flush=True)
        while not Path("go").exists():
            time.sleep(0.02)
        queue.put(1)
        worker.join()
"""
DOCTOR_OF_BUSY = """
import sys, time
from pathlib import Path
from dragon.cli import doctor
from dragon.runtime.inspection import Inquiry

collect = Inquiry.collect

def collect_from_busy(self, expected, patience):
    assert expected
    Path("go").touch()
    while not Path("busy").exists():
        time.sleep(0.02)
    return collect(self, expected, patience)

Inquiry.collect = collect_from_busy
doctor.main([sys.argv[1]])
"""


def test_a_worker_that_computes_is_not_said_to_be_stopped(site: Site) -> None:
    with running(site, BUSY) as program:
        await_that(lambda: bool(findings(program)["worker"]["waits"]), "the worker's wait")
        shown = site.run(sys.executable, "-c", DOCTOR_OF_BUSY, program.name)
        assert re.search(r"^worker \(.*\): running", shown.stdout, re.MULTILINE), shown.stderr
        assert "not shown:" not in shown.stdout


DOCTOR_OF_ENDED = """
import os, signal, sys, time
from dragon import runs
from dragon.cli import doctor
from dragon.cli.ps import rows

(run,) = (run for run in runs.find() if sys.argv[1] in run.words)
os.kill(int(sys.argv[1]), signal.SIGKILL)
while rows(run, ["gone"] * len(run.nodes)):
    time.sleep(0.02)
runs.find = lambda: [run]
doctor.main([run.name])
"""


def test_a_run_that_is_just_ending_is_said_to_end(site: Site) -> None:
    with running(site, HANGING, "--nodes", "2") as program:
        shown = site.run(sys.executable, "-c", DOCTOR_OF_ENDED, str(program.process.pid))
    told = shown.stdout + shown.stderr
    assert told.count("it is ending, or has ended: its agent and processes are gone") == 2, told


def test_a_wait_for_an_object_of_another_node_is_reported(site: Site) -> None:
    source = """
        import json, os
        from dragon.infrastructure.policy import Policy
        from dragon.native.process import Process
        from dragon.native.queue import Queue

        def work(queue, here):
            here.put(os.getpid())
            queue.get()

        if __name__ == "__main__":
            queue, here = Queue(), Queue()
            place = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
            process = Process(work, (queue, here), policy=place, ident="far")
            process.start()
            print(json.dumps({"far": here.get()}), flush=True)
            process.join()
    """
    with running(site, source, "--nodes", "2") as program:
        first, second = program.ask("doctor")["nodes"]
        far = next(f for f in second["findings"] if f["row"]["pid"] == program.pids["far"])
        (waits,) = texts(far)
        assert waits.startswith("for the agent to answer: Channel.get of an object on node 0")
        assert any(frame[0] == "work" for _, _, frames in far["threads"] for frame in frames)
        who, _, what, *_ = first["report"]["parked"][0]
        assert (who, what) == (f"node 1 process {program.pids['far']}", "Channel.get")
        text = site.dragon("doctor", program.name).stdout
        assert f"{who} has waited" in text
        assert "s for get of the queue made at program.py:" in text


def test_groups_and_their_failures_are_reported(site: Site) -> None:
    source = """
        import json, os
        from dragon.native.process import ProcessTemplate
        from dragon.native.process_group import ProcessGroup
        from dragon.native.queue import Queue

        if __name__ == "__main__":
            queue = Queue()
            group = ProcessGroup(name="talk", ignore_error_on_exit=True)
            group.add_process(1, ProcessTemplate("false"))
            group.add_process(2, ProcessTemplate(queue.get))
            group.init()
            group.start()
            while len(group.puids) > 2:
                pass
            print(json.dumps({"head": os.getpid()}), flush=True)
            group.join()
    """
    with running(site, source) as program:
        text = site.dragon("doctor", str(program.process.pid)).stdout
        assert "group talk: 2 of 3 members live; rank 0" in text
        assert "for group talk (2 of 3 members running)" in text


def test_repeated_reports_leave_no_socket(site: Site) -> None:
    with running(site, HANGING) as program:
        for _ in range(2):
            assert findings(program)["holder"]["threads"]
        assert not (program.folder() / "doctor").exists()


def test_a_socket_that_a_killed_doctor_left_is_replaced(site: Site) -> None:
    with running(site, HANGING) as program:
        leave = "import socket, sys; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).bind(sys.argv[1])"
        site.run(sys.executable, "-c", leave, program.folder() / "doctor")
        assert findings(program)["holder"]["threads"]


def test_the_program_is_not_disturbed(site: Site) -> None:
    source = """
        import json, os, time
        from dragon.native.queue import Queue

        queue = Queue()
        print(json.dumps({"head": os.getpid()}), flush=True)
        try:
            queue.get(timeout=15)
        except Exception as error:
            print(type(error).__name__)
    """
    with running(site, source, plain=True) as program:
        assert findings(program)["head"]["threads"]
        out, errors = program.process.communicate(timeout=60)
        assert (out, errors, program.process.returncode) == ("Empty\n", "", 0)
