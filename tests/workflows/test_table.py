"""The table of a batch's tasks."""

from __future__ import annotations

import csv
import os
import socket
import time
from pathlib import Path
from threading import Event

import pytest

from dragon.native.process import ProcessTemplate
from dragon.workflows.batch import Batch, TaskCancelledError


def fail(text: str) -> None:
    raise ValueError(text)


def rows_of(path: Path) -> dict[str, dict[str, str]]:
    with path.open(newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def test_each_task_that_has_ended_has_a_line_with_its_outcome_times_and_place(tmp_path: Path) -> None:
    path, began = tmp_path / "tasks.csv", time.time()
    with Batch(workers_per_node=1, table=path) as batch:
        pid = batch.options(name="pid").function(os.getpid)
        batch.options(name="slow").function(time.sleep, 0.2)
        batch.options(name="wrong", retries=1).function(fail, "a, b\n")
        batch.options(name="exit").process(ProcessTemplate("sh", ["-c", "exit 3"]))
        own = pid.get()
    rows = rows_of(path)
    assert {name: (row["kind"], row["outcome"], row["tries"]) for name, row in rows.items()} == {
        "pid": ("function", "done", "1"),
        "slow": ("function", "done", "1"),
        "wrong": ("function", "failed", "2"),
        "exit": ("process", "done", "1"),
    }
    assert (rows["pid"]["task"], rows["pid"]["node"], rows["pid"]["pid"]) == ("0-0", socket.gethostname(), str(own))
    assert rows["wrong"]["error"] == "ValueError: a, b"
    slow = rows["slow"]
    assert 0.2 <= float(slow["seconds"]) <= float(slow["ended"]) - float(slow["submitted"]) + 0.01
    assert began - 0.01 <= float(slow["submitted"])
    assert float(slow["ended"]) <= time.time()


def test_what_has_ended_can_be_read_while_others_run(tmp_path: Path) -> None:
    path = tmp_path / "tasks.csv"
    with Batch(workers_per_node=2, table=path) as batch:
        batch.options(name="first").function(int).get()
        batch.options(name="second").function(time.sleep, 30)
        deadline = time.monotonic() + 20
        while "first" not in rows_of(path) and time.monotonic() < deadline:
            Event().wait(0.01)
        assert [*rows_of(path)] == ["first"]
        batch.cancel()
    assert TaskCancelledError.__name__ in rows_of(path)["second"]["error"]


def test_a_full_disk_is_logged_and_the_tasks_go_on(caplog: pytest.LogCaptureFixture) -> None:
    """Also where warnings are errors (pytest makes them errors here)."""
    with Batch(workers_per_node=1, table="/dev/full") as batch:
        assert [batch.function(abs, -number).get() for number in range(3)] == [0, 1, 2]
    assert caplog.messages == ["the table /dev/full takes no more lines: [Errno 28] No space left on device"]


def test_a_table_that_cannot_be_written_is_an_error_at_the_call(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        Batch(table=tmp_path / "missing" / "tasks.csv")
