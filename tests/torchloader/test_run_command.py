"""What `torchloader run` refuses before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchloader.cli.main import main
from torchloader.scheduling.application import Spec
from torchloader.scheduling.log import EventLog
from torchloader.service.settings import Settings


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "jobs.toml"
    path.write_text('[[jobs]]\nname = "job"\nscript = "train.py"\nbatch = 4\n')
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run that has begun."""
    folder = tmp_path / "run"
    folder.mkdir()
    Settings(str(folder), 0.0).save()
    with EventLog(folder / "events.jsonl") as log:
        log.records.submit(Spec("job", "train.py", 1, batch=4, iterations=1), 0.0)
    return folder


def test_a_damaged_event_log_is_told_by_its_line_and_nothing_is_started(
    workload: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "events.jsonl"
    path.write_bytes(path.read_bytes() + b"garbage\n")
    assert main(["run", workload, "--folder", str(folder)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith(f"torchloader: {path}, line 2: ")
    assert line.endswith("Restore it, or begin with another folder")


def test_a_folder_in_which_a_run_goes_on_is_left_to_it(
    workload: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "settings.json").read_bytes()
    with EventLog(folder / "events.jsonl"):
        assert main(["run", workload, "--folder", str(folder), "--cores", "3"]) == 2
    assert "another master has this event log open" in capsys.readouterr().err
    assert (folder / "settings.json").read_bytes() == before


@pytest.mark.parametrize("command", ["run", "report", "fit"])
def test_damaged_settings_are_told_by_their_file(
    workload: str, folder: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "settings.json").write_text("garbage")
    words = [workload, "--folder", str(folder)] if command == "run" else [str(folder)]
    assert main([command, *words]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"torchloader: {folder / 'settings.json'}: JSON is malformed")
