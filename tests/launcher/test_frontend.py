"""The front end of a run over several nodes, with agents that run plain subprocesses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import Site
from dragon.infrastructure.membership import Token

STAND_IN = Path(__file__).with_name("stand_in.py")
OVER = Path(__file__).with_name("over.py")


def front_end(*command: str, nodes: int = 3, options: str = "{}") -> list[str | Path]:
    return [sys.executable, "-W", "error", OVER, f'{{"wlm": "local", "nodes": {nodes}}}', options, *command]


def run(
    site: Site, *command: str, nodes: int = 3, options: str = "{}", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return site.run(*front_end(*command, nodes=nodes, options=options), env=env or {})


def start(site: Site, *command: str, nodes: int = 3, options: str = "{}") -> subprocess.Popen[str]:
    return site.start(*front_end(*command, nodes=nodes, options=options))


def agents(site: Site) -> list[int]:
    return sorted(pid for pid, command in site.processes() if STAND_IN.name in command)


def test_the_head_runs_on_the_first_node_and_its_exit_code_is_that_of_the_run(site: Site) -> None:
    done = run(site, "sh", "-c", "echo $INDEX: $NODES; echo bad >&2; exit 7")
    assert done.stdout == "0: node-0 node-1 node-2\ncode 7\n"
    assert done.stderr == "bad\n"


def test_the_exit_code_of_a_killed_head_is_its_signal(site: Site) -> None:
    assert run(site, "sh", "-c", "kill -9 $$").stdout == "code -9\n"


def test_all_output_arrives_in_order(site: Site) -> None:
    program = site.write("for i in range(200_000): print(i)", "head.py")
    lines = run(site, sys.executable, str(program)).stdout.splitlines()
    assert lines == [*map(str, range(200_000)), "code 0"]


def test_a_slow_reader_receives_all_output(site: Site) -> None:
    program = site.write("for i in range(50_000): print(i)", "head.py")
    process = start(site, sys.executable, str(program))
    assert process.stdout is not None
    lines = []
    for _ in range(20):
        lines.append(process.stdout.readline().strip())
        time.sleep(0.02)
    lines += process.stdout.read().splitlines()
    assert lines == [*map(str, range(50_000)), "code 0"]
    process.communicate(timeout=30)


def test_the_head_reads_standard_input(site: Site) -> None:
    lines = "".join(f"line {number}\n" for number in range(50_000))
    process = site.start(*front_end("sh", "-c", "sort -r; echo done"), stdin=subprocess.PIPE)
    out, err = process.communicate(lines, timeout=60)
    assert out == "".join(sorted(lines.splitlines(keepends=True), reverse=True)) + "done\ncode 0\n", err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_sent_to_the_head(site: Site, number: int) -> None:
    program = site.write(
        f"""
        import signal, sys, time
        signal.signal({int(number)}, lambda *_: sys.exit(5))
        print("ready", flush=True)
        while True:
            time.sleep(0.05)  # a signal that comes as Python falls asleep is handled when it wakes up
        """,
        "head.py",
    )
    process = start(site, sys.executable, str(program))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert out == "code 5\n", err


def test_a_reader_that_closes_the_output_ends_the_run(site: Site) -> None:
    program = site.write("import time\nwhile True: print('x' * 1000, flush=True); time.sleep(0.001)", "head.py")
    process = start(site, sys.executable, str(program))
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.wait(timeout=30)
    process.stderr.close()  # type: ignore[union-attr]


def test_the_error_names_a_node_that_does_not_join(site: Site) -> None:
    done = run(site, "true", options='{"join_timeout": 10}', env={"STAND_IN_SILENT": "1"})
    assert done.returncode == 1
    assert "1 of 3 nodes did not join within 10 s: node-1. Check" in done.stderr


def test_the_reason_of_a_failed_launch_is_reported_although_an_agent_hangs(site: Site) -> None:
    done = site.run(
        *(sys.executable, "-W", "error"),
        site.write("""
            import asyncio, sys, threading, time
            import uvloop
            from dragon import control as joining
            from dragon.infrastructure.membership import Member
            from dragon.infrastructure.node_desc import describe_this_node
            from dragon.launcher.base import Launcher, LaunchError, Starter
            from dragon.launcher.frontend import FrontEnd, Options
            from dragon.runtime.protocol.agents import StartHead

            class OneStopsOneFails(Launcher):
                name, local, nodes = "test", True, ["stops", "fails"]

                async def start(self, token):
                    joined = threading.Event()
                    threading.Thread(target=lambda: asyncio.run(join_and_stop(token, joined)), daemon=True).start()
                    await asyncio.to_thread(joined.wait)
                    self.starters.append(await Starter.run("the command", ["false"], ""))

            async def join_and_stop(token, joined):
                node = describe_this_node()._replace(host_name="stops")
                _, control = await joining._connect(token, 30)
                member = Member(node=node, addresses=["127.0.0.1"], port=1)
                await joining._greet(control, token, bytes(joining.NONCE_SIZE), member)
                joined.set()
                time.sleep(100)

            async def run():
                head = StartHead("true", [], {}, "/", [])
                return await FrontEnd(OneStopsOneFails(), head, Options()).run()

            try:
                uvloop.run(run())
            except LaunchError as error:
                sys.exit(f"launch failed: {error}")
        """),
    )
    assert done.stderr == "launch failed: the command ended with code 1, and wrote nothing\n"


def test_a_signal_while_nodes_join_ends_the_run(site: Site, wait_until) -> None:  # type: ignore[no-untyped-def]
    process = site.start(*front_end("true"), env={"STAND_IN_SILENT": "1"})
    wait_until(lambda: len(agents(site)) == 3)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert out == "code -2\n", err


def test_a_run_under_nohup_ignores_sighup(site: Site) -> None:
    process = site.start("nohup", *front_end("sh", "-c", "echo ready; sleep 0.5; echo done"))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=30)
    assert out == "done\ncode 0\n", err


def test_a_run_ends_although_its_output_is_not_read(site: Site) -> None:
    program = site.write("while True: print('x' * 1000, flush=True)", "head.py")
    process = site.start(*front_end(sys.executable, str(program)), env={"QUIET": "1"})
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=30)
    process.stdout.close()
    process.stderr.close()  # type: ignore[union-attr]


def test_an_agent_that_cannot_start_is_reported(site: Site) -> None:
    done = run(site, "true", env={"STAND_IN": "/nonexistent.py"})
    assert done.returncode == 1
    assert "launch failed: the agent of node-" in done.stderr
    assert "ended with code 2" in done.stderr
    assert "can't open file" in done.stderr


TOLD = "echo $INDEX of $NODES"


@pytest.mark.parametrize("options", ['{"resilient": true}', '{"resilient": true, "idle": 1}'])
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("STAND_IN_FAILING", "the agent of node-0 ended with code 3:\nno memory left"),
        ("STAND_IN_SILENT", "1 of 3 nodes did not join within 10 s: node-0. Check"),
    ],
)
def test_a_resilient_run_begins_without_a_node_that_fails_to_join(site: Site, options: str, how: str, why: str) -> None:
    options = options.replace("}", ', "join_timeout": 10}')
    done = run(site, "sh", "-c", TOLD, options=options, env={how: "0"})
    assert done.stdout == "0 of node-1 node-2\ncode 0\n", done.stderr
    assert f"the run begins without node-0: {why}" in done.stderr


def test_a_resilient_run_with_too_few_nodes_does_not_begin(site: Site) -> None:
    done = run(site, "true", options='{"resilient": true, "idle": 1}', env={"STAND_IN_FAILING": "1,2"})
    assert done.returncode == 1
    assert "launch failed: the agent of node-" in done.stderr
    assert "no memory left" in done.stderr


def test_the_other_nodes_are_notified_of_a_lost_node(site: Site, wait_until) -> None:  # type: ignore[no-untyped-def]
    process = start(site, "sh", "-c", "echo ready; exec sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.kill(agents(site)[2], signal.SIGKILL)
    assert process.stderr is not None
    told = {process.stderr.readline() for _ in range(3)}
    assert any("is lost" in line and "dragon ERROR" in line for line in told)
    assert sum("heard that" in line for line in told) == 2
    process.terminate()
    out, _ = process.communicate(timeout=30)
    assert out == "code -15\n"


def test_the_run_ends_if_the_node_of_the_head_is_lost(site: Site) -> None:
    process = start(site, "sh", "-c", "echo $PPID; exec sleep 60")
    assert process.stdout is not None
    os.kill(int(process.stdout.readline()), signal.SIGKILL)
    out, err = process.communicate(timeout=30)
    assert out == "code 1\n"
    assert "the run ends: the head process was there" in err
    for pid, command in site.processes():  # the stand-in does not take its child with it
        if "sleep" in command:
            os.kill(pid, signal.SIGKILL)


HEAD = "echo $INDEX $PPID $DRAGON_RESILIENT_RESTART; test $INDEX = {last} || exec sleep 60"


@pytest.mark.parametrize(
    ("options", "losses", "told"),
    [
        ('{"resilient": true}', 2, "code 0"),
        ('{"resilient": true, "idle": 1}', 1, "code 0"),
        ('{"resilient": true, "idle": 1}', 2, "code 1"),
        ('{"resilient": true, "idle": 1, "exhaust": true}', 2, "code 0"),
        ("{}", 1, "code 1"),
    ],
)
def test_a_resilient_run_restarts_on_the_remaining_nodes_while_there_are_enough(
    site: Site, options: str, losses: int, told: str
) -> None:
    process = start(site, "sh", "-c", HEAD.format(last=losses), options=options)
    assert process.stdout is not None
    for loss in range(losses):
        index, pid, *again = process.stdout.readline().split()
        assert (index, again) == (str(loss), ["1"] * bool(loss))
        os.kill(int(pid), signal.SIGKILL)
    out, err = process.communicate(timeout=30)
    assert out.splitlines()[-1] == told, (out, err)
    for other, what in site.processes():  # the stand-in does not take its child with it
        if "sleep" in what:
            os.kill(other, signal.SIGKILL)


def test_a_resilient_run_ends_if_more_nodes_are_lost_than_were_idle(site: Site) -> None:
    process = start(site, "sh", "-c", "echo $PPID; exec sleep 2", options='{"resilient": true, "idle": 1}')
    assert process.stdout is not None
    of_the_program = int(process.stdout.readline())
    others = [pid for pid in agents(site) if pid != of_the_program]
    os.kill(others[0], signal.SIGKILL)
    assert int(process.stdout.readline()) == of_the_program
    os.kill(others[1], signal.SIGKILL)
    out, err = process.communicate(timeout=30)
    assert out == "code 1\n", err
    assert "the run ends: too few nodes are left" in err


def test_killing_the_front_end_ends_the_agents(site: Site, wait_until) -> None:  # type: ignore[no-untyped-def]
    process = start(site, "sh", "-c", "echo ready; exec sleep 2")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate(timeout=30)
    wait_until(lambda: not agents(site))


def test_the_secret_is_not_in_command_lines_or_environments(site: Site) -> None:
    process = start(site, "sh", "-c", "echo ready; exec sleep 60", nodes=2)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert len(agents(site)) == 2
    for pid, _ in site.processes():
        for kind in ("cmdline", "environ"):
            for word in Path(f"/proc/{pid}/{kind}").read_bytes().split(b"\0"):
                with pytest.raises(ValueError):
                    Token.decode(word.rpartition(b"=")[2].decode(errors="replace"))
    process.terminate()
    process.communicate(timeout=30)
