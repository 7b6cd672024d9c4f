"""The trace files of an application, which continue after a pause without a gap."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from torchloader.training.traces import HEARTBEATS, ITERATIONS, WORKERS, Traces


def run(folder: Path, start: int, end: int) -> Traces:
    traces = Traces(folder, "job", iteration=start)
    for number in range(start + 1, end + 1):
        traces.iteration(number, [0.5, 0, 0.25, 0.25, 0], 1 / number)
        traces.heartbeat(1000 + number, number, 8, 0.5, 0.5, 2)
    return traces


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_iterations_heartbeats_and_worker_changes_are_traced(tmp_path: Path) -> None:
    traces = run(tmp_path / "new", 0, 2)
    traces.workers(1002.5, 2, 4, 'gain, "large"', 0.125)
    traces.close()
    assert rows(traces.path("iterations")) == [
        list(ITERATIONS),
        ["1", "0.500000", "0.000000", "0.250000", "0.250000", "0.000000", "1"],
        ["2", "0.500000", "0.000000", "0.250000", "0.250000", "0.000000", "0.5"],
    ]
    assert rows(traces.path("heartbeats"))[:2] == [
        list(HEARTBEATS),
        ["1001.000", "1", "8", "0.500000", "0.500000", "2"],
    ]
    assert rows(traces.path("workers")) == [list(WORKERS), ["1002.500", "2", "4", 'gain, "large"', "0.125000"]]
    assert all(path.name.startswith("trace") for path in (tmp_path / "new").iterdir())


def test_a_resumed_application_continues_its_traces(tmp_path: Path) -> None:
    run(tmp_path / "whole", 0, 6).close()
    run(tmp_path / "parts", 0, 4).close()
    run(tmp_path / "parts", 4, 6).close()
    whole, parts = (sorted((tmp_path / name).iterdir()) for name in ("whole", "parts"))
    assert [path.read_text() for path in whole] == [path.read_text() for path in parts]


def test_iterations_repeated_after_a_crash_are_traced_once(tmp_path: Path) -> None:
    traces = run(tmp_path, 0, 6)
    traces.close()
    with traces.path("iterations").open("a") as file:
        file.write("7,0.5")
    run(tmp_path, 3, 5).close()
    assert [row[0] for row in rows(traces.path("iterations"))] == ["iteration", "1", "2", "3", "4", "5"]


def test_the_summary_covers_all_parts(tmp_path: Path) -> None:
    run(tmp_path, 0, 4).close()
    traces = run(tmp_path, 4, 8)
    traces.close()
    summary = json.loads(traces.path("summary", "json").read_text())
    assert (summary["iterations"], summary["samples"], summary["seconds"]) == (8, 64, 8.0)
    assert (summary["samples_per_second"], summary["busy"], summary["loss"]) == (8.0, 0.5, 0.125)
    assert summary["phases"]["forward"] == {"mean": 0.25, "median": 0.25, "percentile_95": 0.25}


def test_an_application_without_iterations_has_a_summary(tmp_path: Path) -> None:
    traces = Traces(tmp_path, "idle")
    traces.close()
    summary = json.loads(traces.path("summary", "json").read_text())
    assert (summary["iterations"], summary["samples_per_second"]) == (0, None)
