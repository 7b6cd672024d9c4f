"""num_workers="auto" with real workers: their number follows the load, and programs share the cores of a node."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from loader_datasets import Computing, Stored
from stream_datasets import Numbers

from conftest import Site
from dragon.claims import Claim
from torchloader import ElasticDataLoader
from torchloader.allocation.budget import Lease

HERE = Path(__file__).parent
LONG = 10**6

COMPUTING = f"""
import os
import sys

sys.path.insert(0, {str(HERE)!r})
from loader_datasets import Computing
from torchloader import ElasticDataLoader

if __name__ == "__main__":
    told = 0
    with ElasticDataLoader(Computing({LONG}, 0.005), num_workers="auto", collate_fn=list) as loader:
        for _ in loader:
            if loader.workers != told:
                told = loader.workers
                with open(sys.argv[1] + ".new", "w") as file:
                    file.write(str(told))
                os.rename(sys.argv[1] + ".new", sys.argv[1])
            if os.path.exists("stop"):
                break
"""


def loader_of(dataset: object, **options: object) -> ElasticDataLoader:
    return ElasticDataLoader(dataset, **{"num_workers": "auto", "collate_fn": list, "seed": 1, **options})  # type: ignore[arg-type]


def test_the_number_rises_for_a_slow_storage_and_falls_when_it_becomes_fast(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "torchloader")
    fast = tmp_path / "fast"
    with loader_of(Stored(LONG, 0.03, 0.0005, str(fast)), max_workers=6) as loader:
        assert loader.tuning is None
        batches = iter(loader)
        while loader.workers < 4:
            next(batches)
            time.sleep(0.004)  # the training step
        fast.touch()
        while loader.workers > 2:
            next(batches)
            time.sleep(0.004)
        assert loader.tuning is not None
        assert str(loader.tuning).endswith(("are not needed", "is tried next", "bring nothing"))
    assert all(record.getMessage().startswith('num_workers="auto": ') for record in caplog.records)
    assert capfd.readouterr().out == ""


def test_the_number_rises_over_several_short_epochs(tmp_path: Path) -> None:
    with loader_of(Stored(20, 0.02, 0.0, str(tmp_path / "never")), max_workers=8) as loader:
        while loader.workers < 3:
            for _ in loader:
                time.sleep(0.002)


def test_a_computing_dataset_gets_no_more_workers_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLOADER_CORES", "2")
    with loader_of(Computing(400, 0.005), max_workers=16) as loader:
        workers = set()
        for _ in loader:
            workers.add(loader.workers)
        assert max(workers) <= 2


def test_resize_ends_the_search(tmp_path: Path) -> None:
    with loader_of(Stored(300, 0.002, 0.0, str(tmp_path / "never"))) as loader:
        for number, _ in enumerate(loader):
            if number == 50:
                loader.resize(2)
            assert number < 50 or loader.workers == 2
        assert loader.tuning is None


def test_programs_share_the_cores_of_a_node_and_get_those_of_a_killed_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = site.write(COMPUTING)
    one, two = (site.start(sys.executable, program, name, env={"TORCHLOADER_CORES": "4"}) for name in ("one", "two"))

    def workers() -> list[str]:
        time.sleep(0.02)
        assert two.poll() is None
        return [path.read_text() for path in (site.folder / "one", site.folder / "two") if path.exists()]

    while workers() != ["2", "2"]:  # each begins with one, and alone comes to four
        pass
    monkeypatch.setenv("XDG_RUNTIME_DIR", site.environment["XDG_RUNTIME_DIR"])
    mine = Claim("loading_cores")
    for _ in range(100):
        mine.settle(_within(4))
        time.sleep(0.02)
    mine.close()
    one.kill()
    one.communicate()
    while workers()[1] != "4":
        pass
    (site.folder / "stop").touch()
    assert two.communicate() == ("", "")


def test_a_variable_enables_auto_for_loaders_with_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLOADER_AUTO", "1")
    with loader_of(Computing(LONG, 0.005), num_workers=3) as loader:
        assert loader.workers == 1
        for _ in loader:
            if loader.tuning is not None:
                break


def test_the_variable_does_not_change_the_number_of_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def batches() -> list[list[int]]:
        with loader_of(Numbers(20), num_workers=3, batch_size=2, seed=None) as loader:
            assert loader.streams == 3
            return list(loader)

    fixed = batches()
    monkeypatch.setenv("TORCHLOADER_AUTO", "1")
    assert batches() == fixed


@pytest.mark.parametrize(
    ("variables", "workers"),
    [({}, 0), ({"TORCHLOADER_WORKERS": "4"}, 2), ({"TORCHLOADER_AUTO": "0"}, 2)],
    ids=["no workers", "a job of torchloader", "0"],
)
def test_the_variable_does_not_affect_other_loaders(
    variables: dict[str, str], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ({"TORCHLOADER_AUTO": "1"} | variables).items():
        monkeypatch.setenv(name, value)
    with loader_of(range(4), num_workers=workers) as loader:
        assert (loader.workers, list(loader), loader.tuning) == (workers, [[0], [1], [2], [3]], None)


def test_an_invalid_value_of_the_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLOADER_AUTO", "yes")
    with pytest.raises(ValueError, match=r"TORCHLOADER_AUTO must be 1, .* or 0, not 'yes'"):
        loader_of(range(4), num_workers=2)


def _within(cores: float) -> Callable[[list[bytes]], bytes]:
    """Return a claim on no cores that checks that the other claims do not exceed `cores`."""

    def check(others: list[bytes]) -> bytes:
        leases = [msgspec.json.decode(other, type=Lease) for other in others]
        assert len(leases) == 2
        assert sum(lease.held for lease in leases) <= cores * 1.1  # as measured, a worker takes 1.0 or 1.02
        return msgspec.json.encode(Lease(0.0, 0.0, 0.0))

    return check
