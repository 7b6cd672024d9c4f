"""The program that trains the networks of a workload."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from torchloader.training.train import main  # noqa: E402

NETWORK = ["--arch", "resnet", "--depth", "10", "--device", "cpu", "--workers", "0"]


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "trace-training-iterations-0.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_program_trains_from_the_start_to_the_end_iteration(tmp_path: Path) -> None:
    span = ["--start-iter", "2", "--end-iter", "3", "--end-epoch", "2"]
    assert main([*NETWORK, "--batch", "2", *span, "--folder", str(tmp_path)]) == 0
    traced = rows(tmp_path)
    assert [row["iteration"] for row in traced] == ["1", "2", "3", "4"]
    assert all(float(row[phase]) > 0 for row in traced for phase in ("forward", "backward", "update", "loss"))


def test_a_step_takes_the_given_time(tmp_path: Path) -> None:
    folder = str(tmp_path / "traces")
    data = ["--dataset", "latency:0.001", "--step-time", "0.5"]
    main([*NETWORK, "--batch", "2", "--end-iter", "2", *data, "--folder", folder])
    with (tmp_path / "traces" / "trace-training-heartbeats-0.csv").open() as file:
        beats = list(csv.DictReader(file))
    assert sum(float(beat["computing"]) for beat in beats) >= 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--start-iter", "5", "--end-iter", "5"], "the start must come before the end"),
        (["--start-epoch", "3"], "the start must come before the end"),
        (["--batch", "0"], "argument --batch"),
        (["--dataset", "tape"], "argument --dataset"),
        (["--dataset", "latency:soon"], "argument --dataset"),
    ],
)
def test_invalid_options_are_errors(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main([*NETWORK, "--batch", "2", *options])
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_fewer_images_than_a_batch_are_an_error() -> None:
    with pytest.raises(SystemExit, match="3 images are fewer than a batch of 4"):
        main([*NETWORK, "--batch", "4", "--samples", "3"])
