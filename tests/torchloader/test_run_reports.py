"""The pages and pictures of runs, from their event logs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from full_disk import at_most
from torchloader.cli.main import main as torchloader
from torchloader.cli.report import history, main
from torchloader.cli.status import lines
from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import Spec, State
from torchloader.scheduling.log import EventLog
from torchloader.service.attempt import Pace, PaceFile


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run of ten seconds with two jobs, of which one fails."""
    folder = tmp_path / "run"
    folder.mkdir()
    with EventLog(folder / "events.jsonl") as log:
        for name in ("good", "<bad>"):
            log.records.submit(Spec(name, "resnet-10", {"vm": (0, 1)}, batch=8, iterations=100), 0.0)
            log.records.change(name, State.STARTING, 1.0, "arrival", workers=3, placement={"vm": (0, 1)})
            log.records.change(name, State.RUNNING, 2.0, "all its ranks train")
        log.records.change("<bad>", State.FAILED, 4.0, "no such <data set>", progress=10.0)
        log.records.change("good", State.RUNNING, 5.0, "its curve was measured", curve=Curve(100, 0.01))
        log.records.change("good", State.RESIZING, 6.0, "departure", workers=5)
        log.records.change("good", State.RUNNING, 6.5, "all its ranks have their workers")
        log.records.change("good", State.FINISHED, 10.0, "it has come to its end", progress=100.0)
    pace = PaceFile(folder)
    for second in range(3, 10):
        pace.write(float(second), "good", Pace(second * 10, 80.0, 0.25, 0.5), 3)
    pace.close()
    return folder


def test_the_numbers_of_a_run_are_computed_from_its_log(run: Path) -> None:
    told = history(run)
    good = told.lives["good"]
    assert [span.state for span in good.spans][:3] == ["queued", "starting", "running"]
    assert good.workers == [(1.0, 6), (6.0, 10), (10.0, 0)]
    assert (good.seconds, good.busy) == (10.0, 0.75)
    assert good.throughput == pytest.approx(100 * 8 / 9)
    summary = told.summary
    assert (summary.jobs, summary.failed, summary.resizes) == (2, 1, 1)
    assert (summary.completion, summary.makespan, summary.throughput) == (7.0, 10.0, 88.0)


def test_the_page_uses_no_other_files_and_says_why_a_job_failed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main([str(run)]) == 0
    assert capsys.readouterr().out.split() == [str(run / "report.html"), str(run / "schedule.png")]
    page = (run / "report.html").read_text()
    assert "failed: no such &lt;data set&gt;" in page
    assert "<data set>" not in page
    # Only names of vocabularies, which nobody fetches.
    assert re.findall(r'(?:src|href)="(https?:[^"]*)"', page) == []
    assert (run / "schedule.png").read_bytes().startswith(b"\x89PNG")


def test_an_incomplete_row_is_ignored_and_the_next_master_can_append(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pace = PaceFile(run)
    with at_most((run / "pace.csv").stat().st_size + 20):  # room for half a row
        for second in (10, 11):
            pace.write(float(second), "good", Pace(second * 10, 80.0, 0.75, 0.5), 3)
        pace.close()
    told = f"how fast jobs train is not written any more: {run / 'pace.csv'}: No space left on device\n"
    assert capsys.readouterr().err == f"torchloader: {told}"
    pace = PaceFile(run)
    pace.write(12.0, "good", Pace(120, 80.0, 0.25, 0.5), 3)
    pace.close()
    assert [moment.time for moment in history(run).lives["good"].pace] == [3, 4, 5, 6, 7, 8, 9, 12]


def test_several_runs_can_be_compared(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main([str(run), str(run), "--out", str(tmp_path / "both")]) == 0
    assert (tmp_path / "both" / "comparison.png").exists()
    assert "mean time, s" in (tmp_path / "both" / "report.html").read_text()


def test_a_folder_without_a_run_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert torchloader(["report", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"torchloader: {tmp_path} is not the folder of a run: it has no events.jsonl\n"


def test_the_status_is_printed_as_a_table() -> None:
    application = {
        "name": "job", "state": "running", "reason": "all its ranks train", "workers": 3, "devices": 2, "nodes": ["vm"],
        "iteration": 5, "iterations": 100, "samples_per_second": 12.34, "waiting": 0.25,
        "away": 2,
    }  # fmt: skip
    nodes = [{"node": "vm", "cores": 8, "used": 6, "lent": 0, "devices": 2}]
    told = lines({"time": 61.4, "policy": "even", "nodes": nodes, "applications": [application]}).splitlines()
    assert told[0] == "61 s, policy even; vm: 6 of 8 cores load"
    assert told[2].split()[:10] == ["job", "running", "5/100", "12.3", "25%", "3x2,", "2", "away", "2", "vm"]
    assert told[2].endswith("all its ranks train")
