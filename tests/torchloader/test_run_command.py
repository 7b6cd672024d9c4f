"""Invalid input that `torchloader run` and other commands refuse before they start processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from full_disk import at_most
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
    """The folder of a run that has begun."""
    folder = tmp_path / "run"
    folder.mkdir()
    Settings(str(folder), 0.0).save()
    with EventLog(folder / "events.jsonl") as log:
        log.records.submit(Spec("job", "train.py", 1, batch=4, iterations=1), 0.0)
    return folder


def test_the_error_about_a_damaged_event_log_has_its_line(
    workload: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "events.jsonl"
    path.write_bytes(path.read_bytes() + b"garbage\n")
    assert main(["run", workload, "--folder", str(folder)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith(f"torchloader: {path}, line 2: ")
    assert line.endswith("Restore it, or use another folder")


def test_the_folder_of_another_live_run_is_refused_and_unchanged(
    workload: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "settings.json").read_bytes()
    with EventLog(folder / "events.jsonl"):
        assert main(["run", workload, "--folder", str(folder), "--cores", "3"]) == 2
    assert "another master has this event log open" in capsys.readouterr().err
    assert (folder / "settings.json").read_bytes() == before


@pytest.mark.parametrize(
    "words", ["run WORKLOAD --folder NEW", "report FOLDER", "simulate --jobs 1 --seeds 1 --out NEW"]
)
def test_the_error_about_a_full_disk_names_the_file(
    workload: str, folder: Path, tmp_path: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    places = {"WORKLOAD": workload, "FOLDER": str(folder), "NEW": str(tmp_path / "new")}
    with at_most(10):
        assert main([places.get(word, word) for word in words.split()]) != 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.endswith(": File too large")]
    assert line.partition(": ")[2].startswith(str(tmp_path))
    assert list(tmp_path.rglob("*.new")) == []


@pytest.mark.parametrize(("data", "reason"), [(b"garbage", "malformed"), (b'{"folder": "\xff"}', "utf-8")])
@pytest.mark.parametrize("command", ["run", "report", "fit"])
def test_the_error_about_damaged_settings_names_the_file(
    workload: str, folder: Path, command: str, data: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "settings.json").write_bytes(data)
    words = [workload, "--folder", str(folder)] if command == "run" else [str(folder)]
    assert main([command, *words]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"torchloader: {folder / 'settings.json'}: ")
    assert reason.casefold() in line.casefold()  # msgspec's words


@pytest.mark.parametrize("command", ["run", "profile"])
@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("jobs.csv", "arch,depth\n", "jobs.csv: found no column batch, "),
        ("jobs.toml", "jobs = [", "jobs.toml: found invalid TOML: "),
        ("jobs.yaml", "jobs: 1", "jobs.yaml, jobs: found 1, expected a list of jobs"),
    ],
)
def test_an_error_of_a_whole_file_is_not_reported_as_one_of_a_job(
    tmp_path: Path, command: str, name: str, text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert main([command, str(tmp_path / name)]) != 0
    mistake, last = capsys.readouterr().err.splitlines()
    assert mistake.startswith(f"torchloader: {tmp_path}/{told}")
    assert "left out" not in mistake
    assert last == f"torchloader: {tmp_path}/{name} has no job that can be run"


def test_the_error_about_an_unknown_job_names_the_existing_ones(
    workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", workload, "--only", "job", "--only", "nobody"]) == 2
    assert capsys.readouterr().err == f"torchloader: {workload} has no job nobody; there are: job\n"


def test_an_unreadable_prior_is_an_error_although_no_job_needs_it(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", workload, "--folder", str(tmp_path / "run"), "--prior", str(tmp_path / "nobody")]) == 2
    assert capsys.readouterr().err == f"torchloader: {tmp_path}/nobody: No such file or directory\n"
