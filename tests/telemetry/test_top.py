"""`dragon top`: shows a run in a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from conftest import Site
from dragon.cli import watching
from dragon.infrastructure.metrics import Lifetime, RunState
from dragon.top import TABLES, Series, Snapshot, sparkline, take
from peers import dragon

PROGRAM = """
import sys
from dragon.infrastructure.policy import Policy
from dragon.native.process import Process

if __name__ == "__main__":
    failing = Process(sys.exit, (3,), ident="failing", policy=Policy(
        placement=Policy.Placement.HOST_NAME, host_name="node-1"))
    failing.start()
    failing.join()
    print("told", flush=True)
    sys.stdin.read()
"""
pytestmark = pytest.mark.xdist_group("top")  # they share a run
RUN = RunState("3fa9c1", "train.py", 1000.0, ["a", "b"], {}, 4, 1.0)


@contextmanager
def begun(site: Site) -> Iterator[subprocess.Popen[str]]:
    """Start a run of two nodes, in which a process has failed; end it after the block."""
    process = site.start(*dragon("--nodes", "2", site.write(PROGRAM)), stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "told\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", site.environment["XDG_RUNTIME_DIR"])
        yield process
    if process.poll() is None:
        process.communicate(timeout=60)


@pytest.fixture(scope="module")
def run(shared_site: Site) -> Iterator[subprocess.Popen[str]]:
    with begun(shared_site) as process:
        yield process


def show(process: subprocess.Popen[str], act: Callable[[Any], Awaitable[None]]) -> None:
    """Run `dragon top` without a terminal, and perform actions in it."""
    pytest.importorskip("textual", reason="Textual is not installed")
    from dragon.top import Top

    async def look_and_act() -> None:
        with watching.choose(str(process.pid)) as watched:

            async def look() -> Snapshot:
                return await take(watched.ask_soon, time.time())

            async with Top(look, 0.1).run_test(size=(140, 40)) as pilot:
                await act(pilot)

    asyncio.run(look_and_act())


def lines(pilot: Any, table: str) -> list[str]:
    """Return the rows of a table."""
    widget = pilot.app.query_one(f"#table-{table}")
    return [" ".join(str(cell) for cell in widget.get_row_at(row)) for row in range(widget.row_count)]


async def until(pilot: Any, condition: Callable[[], bool]) -> None:
    for _ in range(1200):
        if condition():
            return
        await pilot.pause(0.05)
    raise AssertionError("the condition did not come about")


def test_all_nodes_are_shown(run: subprocess.Popen[str]) -> None:
    async def act(pilot: Any) -> None:
        await until(pilot, lambda: [line.split()[0] for line in lines(pilot, "Nodes")] == ["node-0", "node-1"])

    show(run, act)


def test_processes_are_shown_with_their_end_and_can_be_searched_by_any_cell(run: subprocess.Popen[str]) -> None:
    async def act(pilot: Any) -> None:
        await pilot.press("3")
        await until(pilot, lambda: len(lines(pilot, "Processes")) == 2)
        await pilot.press("slash", *"code 3")
        await until(pilot, lambda: [line.split()[0] for line in lines(pilot, "Processes")] == ["failing"])
        await pilot.press("escape")
        await until(pilot, lambda: len(lines(pilot, "Processes")) == 2)

    show(run, act)


def test_rows_are_sorted_by_any_column_both_ways(run: subprocess.Popen[str]) -> None:
    async def act(pilot: Any) -> None:
        await until(pilot, lambda: len(lines(pilot, "Nodes")) == 2)
        await pilot.press("s")
        await until(pilot, lambda: lines(pilot, "Nodes")[0].startswith("node-1"))
        await pilot.press("r")
        await until(pilot, lambda: lines(pilot, "Nodes")[0].startswith("node-0"))

    show(run, act)


def test_the_end_of_the_run_is_shown(site: Site) -> None:
    with begun(site) as run:

        async def act(pilot: Any) -> None:
            await until(pilot, lambda: len(lines(pilot, "Nodes")) == 2)
            await asyncio.to_thread(run.communicate, timeout=60)
            await until(pilot, lambda: "is gone" in str(pilot.app.query_one("#facts").render()))

        show(run, act)


@pytest.mark.parametrize("how", ["q", "SIGTERM"])
def test_a_terminal_shows_the_run_until_q_or_a_signal(run: subprocess.Popen[str], shared_site: Site, how: str) -> None:
    pytest.importorskip("textual", reason="Textual is not installed")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(
            sys.executable,
            [sys.executable, "-m", "dragon", "top", str(run.pid)],
            {**shared_site.environment, "TERM": "xterm-256color", "COLUMNS": "140", "LINES": "40"},
        )
    seen = b""
    while b"node-1" not in seen:
        seen += os.read(terminal, 4096)
    if how == "q":
        os.write(terminal, b"q")
    else:
        os.kill(pid, signal.SIGTERM)
    rest = _read_to_the_end(terminal)
    assert b"\x1b[?1049l" in rest  # the terminal's own screen again
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (0 if how == "q" else 128 + signal.SIGTERM)


def _read_to_the_end(terminal: int) -> bytes:
    seen = b""
    try:
        while piece := os.read(terminal, 4096):
            seen += piece
    except OSError:
        os.close(terminal)  # the other side is closed
    return seen


def test_a_recorded_run_can_be_shown_at_any_time(site: Site) -> None:
    pytest.importorskip("textual", reason="Textual is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from dragon.top import TopOfRecording

    program = "import time; from dragon.native.process import Process; "
    program += "time.sleep(1.5); p = Process(time.sleep, (0.1,), ident='late'); p.start(); p.join(); time.sleep(0.1)"
    assert site.dragon("--telemetry", "runs", site.write(program)).returncode == 0
    recorded = watching.Recorded(site.folder / "runs")

    async def look() -> Snapshot:
        return await take(recorded.ask_soon, recorded.now)

    async def look_and_move() -> None:
        async with TopOfRecording(look, recorded.move).run_test(size=(140, 40)) as pilot:
            await pilot.press("3")
            await until(pilot, lambda: "late" in str(lines(pilot, "Processes")))
            await pilot.press("left")
            await until(pilot, lambda: "late" not in str(lines(pilot, "Processes")))
            assert "head" in str(lines(pilot, "Processes"))
            await pilot.press("right")
            await until(pilot, lambda: "late" in str(lines(pilot, "Processes")))

    asyncio.run(look_and_move())


def test_a_lost_node_and_the_rate_of_a_counter_are_shown() -> None:
    series = [
        Series("network_sent", {"host": "a"}, [10.0, 12.0], [100.0, 4196.0]),
        Series("cpu_percent", {"host": "a"}, [12.0], [50.0]),
    ]
    lost = RunState("3fa9c1", "train.py", 0.0, ["a", "b"], {1: "the host does not answer"}, 4, 1.0)
    here, gone = TABLES[0].rows(Snapshot(12.0, lost, series, []))
    assert [cell.text for cell in here.cells] == ["a", "▄", "50 %", "", "", "2 KiB/s", "", ""]
    assert (gone.cells[1].text, gone.state) == ("is lost: the host does not answer", "failed")


def test_processes_that_wait_for_a_queue_are_counted_together() -> None:
    tags = {"host": "a", "queue": "1"}
    series = [
        Series("queue_waiting", {**tags, "operation": operation}, [12.0], [count])
        for operation, count in (("get", 2.0), ("put", 1.0))
    ]
    (row,) = TABLES[3].rows(Snapshot(12.0, RUN, series, []))
    assert row.cells[-1].text == "3"


def test_the_newest_of_many_ended_processes_are_shown() -> None:
    ended = [Lifetime(0, "a", i, i, f"p{i}", 0, 0, started=1000.0, ended=1000.0 + i, code=0) for i in range(1, 999)]
    rows = TABLES[2].rows(Snapshot(3000.0, RUN, [], ended))
    assert len(rows) == 200
    assert rows[-1].cells[0].text == "p998"


def test_a_sparkline_shows_the_newest_values() -> None:
    assert sparkline([0, 50, 100], top=100) == " ▄█"
    assert sparkline([1.0] * 50) == "█" * 20
    assert sparkline([]) == ""
