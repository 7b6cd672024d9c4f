"""Checkpoints: each one is complete or absent, also if the process is killed or the disk is full during a write."""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from full_disk import at_most  # noqa: E402
from torchloader.training.saving import CheckpointError, Checkpoints, pack, random_state, set_random_state, unpack  # noqa: E402  # noqa: E402


def state(iteration: int, size: int = 1000) -> dict[str, Any]:
    return {"weights": torch.full((size,), float(iteration)), "iteration": iteration, "groups": [{"lr": 0.1}]}


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_saved_checkpoint_can_be_loaded(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "new" / "folder")
    assert checkpoints.load() is None
    checkpoints.save(7, state(7))
    loaded = checkpoints.load()
    assert loaded is not None
    saved, read = loaded
    assert (saved.iteration, read["iteration"], read["groups"]) == (7, 7, [{"lr": 0.1}])
    assert torch.equal(read["weights"], state(7)["weights"])


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for iteration in (1, 5, 9, 12):
        checkpoints.save(iteration, state(iteration))
    assert [saved.iteration for saved in checkpoints.saved()] == [12, 9]
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("harm", [damage, lambda path: os.truncate(path, 100), lambda path: os.truncate(path, 0)])
def test_the_previous_checkpoint_is_loaded_if_the_last_one_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: Any
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(1))
    latest = checkpoints.save(2, state(2))
    harm(tmp_path / latest.file)
    with caplog.at_level(logging.WARNING):
        loaded = checkpoints.load()
    assert loaded is not None
    assert loaded[1]["iteration"] == 1
    assert f"{latest.file} is damaged" in caplog.text


def test_a_new_checkpoint_removes_those_of_later_iterations(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for iteration in (1, 9):
        latest = checkpoints.save(iteration, state(iteration))
    damage(tmp_path / latest.file)
    checkpoints.save(5, state(5))
    assert [saved.iteration for saved in checkpoints.saved()] == [5, 1]


def test_an_error_is_raised_if_all_checkpoints_are_damaged(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    damage(tmp_path / checkpoints.save(1, state(1)).file)
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        checkpoints.load()


def test_a_full_disk_is_an_error_and_the_previous_checkpoint_is_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(1))
    message = "cannot save the checkpoint of iteration 2 in .*: File too large; the one of iteration 1 is kept"
    with at_most(100_000), pytest.raises(CheckpointError, match=message):
        checkpoints.save(2, state(2, size=1_000_000))
    assert [saved.iteration for saved in checkpoints.saved()] == [1]
    assert len(os.listdir(tmp_path)) == 1
    loaded = checkpoints.load()
    assert loaded is not None
    assert loaded[1]["iteration"] == 1


def test_a_pipe_in_place_of_a_checkpoint_is_passed_over(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(1))
    os.mkfifo(tmp_path / f"checkpoint-{2:012d}-{'0' * 64}.pt")
    loaded = checkpoints.load()
    assert loaded is not None
    assert loaded[0].iteration == 1


class Harmful:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch harmed",)


def test_loading_a_checkpoint_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoints = Checkpoints(tmp_path / "c")
    checkpoints.save(1, {"weights": Harmful()})
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        checkpoints.load()
    assert not Path("harmed").exists()


# The child is of one thread and uses none of its parent's.
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_the_last_complete_checkpoint_is_kept_if_a_save_is_killed(tmp_path: Path) -> None:
    """Kill processes that report an iteration after save() has returned; reported iterations must not be lost."""
    checkpoints = Checkpoints(tmp_path)
    moments = random.Random(5)
    done, kills = 0, 40
    for _ in range(kills):
        receiving, sending = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                torch.set_num_threads(1)  # those of the parent are not there
                iteration = done
                while True:
                    iteration += 1
                    Checkpoints(tmp_path).save(iteration, state(iteration, size=20_000))
                    os.write(sending, iteration.to_bytes(4, "little"))
            finally:
                os._exit(1)
        os.close(sending)
        with open(receiving, "rb", buffering=0) as told:
            first = told.read(4)
            time.sleep(moments.uniform(0, 0.02))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            told_last = (first + told.read())[-4:]
        done = int.from_bytes(told_last, "little")
        loaded = checkpoints.load()
        assert loaded is not None
        saved, read = loaded
        assert saved.iteration in (done, done + 1)
        assert torch.equal(read["weights"], state(saved.iteration, size=20_000)["weights"])
        done = saved.iteration
    assert done >= kills
    checkpoints.save(done + 1, state(done + 1))
    assert len(os.listdir(tmp_path)) == 2


def test_the_random_state_can_be_saved_and_restored() -> None:
    import numpy

    def draw() -> list[float]:
        return [random.random(), random.gauss(0, 1), numpy.random.rand(), numpy.random.randn(), torch.rand(1).item()]

    random.gauss(0, 1)
    numpy.random.randn()
    kept = pack(random_state())
    first = draw()
    assert draw() != first
    set_random_state(unpack(kept))
    assert draw() == first
