"""Loaders with the same name, whose workers make each batch once for all of them."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loader_datasets import Noisy, kill_a_worker
from stream_datasets import Numbers

from conftest import Site
from torchloader import ElasticDataLoader
from torchloader.loader import exchange

LENGTH = 120

pytestmark = pytest.mark.usefixtures("own_folders")


class Noted(Noisy):
    """A dataset that records every read, in any process."""

    def __init__(self, length: int, notes: Path) -> None:
        super().__init__(length)
        self.notes = notes

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        with self.notes.open("ab") as notes:
            notes.write(b"x")
        return super().__getitem__(index)


class Scaled(Noisy):
    """A dataset with a different transform for each instance."""

    def __init__(self, length: int, scale: float) -> None:
        super().__init__(length)
        self.scale = scale

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        number, drawn, _ = super().__getitem__(index)
        return number, drawn, self.scale


class Unrepeatable(Noisy):
    """Samples that differ at each read."""

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        return index, time.monotonic(), float(os.urandom(1)[0])


def loader_of(dataset: Any, **options: Any) -> ElasticDataLoader:
    defaults = {"shuffle": True, "num_workers": 1, "seed": 1, "collate_fn": list, "shared_as": "test"}
    return ElasticDataLoader(dataset, 4, **{**defaults, **options})


ALONE = ElasticDataLoader(Noisy(LENGTH), 4, shuffle=True, seed=1, collate_fn=list)
EPOCHS = [list(ALONE) for _ in range(3)]


def test_shared_batches_are_made_once_and_are_the_same_as_without_sharing(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with ExitStack() as stack:
        loaders = [stack.enter_context(loader_of(Noted(LENGTH, notes), persistent_workers=True)) for _ in range(3)]
        for epoch in EPOCHS:
            given = list(zip(*loaders, strict=True))
            assert [list(batches) for batches in given] == [[batch] * 3 for batch in epoch]
        shared = sum(loader.counters.shared for loader in loaders)
    assert shared > 100  # of 270, of which 180 could be but for the first of each epoch
    assert notes.stat().st_size < 3 * 3 * LENGTH - 4 * 100


def test_a_loader_alone_makes_each_batch_once(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with loader_of(Noted(LENGTH, notes)) as loader:
        assert list(loader) == EPOCHS[0]
        assert loader.counters.shared == 0
    assert notes.stat().st_size <= LENGTH + 1  # the first sample is read again once it is known to draw


def test_loaders_with_other_seeds_or_epochs_share_no_batches() -> None:
    with loader_of(Noisy(LENGTH)) as one, loader_of(Noisy(LENGTH), seed=2) as other, loader_of(Noisy(LENGTH)) as later:
        later.set_epoch(1)
        expected = list(ElasticDataLoader(Noisy(LENGTH), 4, shuffle=True, seed=2, collate_fn=list))
        for first, second, third in zip(zip(one, EPOCHS[0], strict=True), zip(other, expected, strict=True),
                                        zip(later, EPOCHS[1], strict=True), strict=True):  # fmt: skip
            assert first[0] == first[1]
            assert second[0] == second[1]
            assert third[0] == third[1]
        assert one.counters.shared == other.counters.shared == later.counters.shared == 0


def both(one: ElasticDataLoader, other: ElasticDataLoader) -> Iterator[tuple[Any, Any]]:
    return zip(one, other, strict=True)


def test_loaders_with_the_same_name_and_different_batches_raise_an_error() -> None:
    told = "loaders with shared_as='test' on this node make different batches of the same samples: give those with"
    with loader_of(Scaled(LENGTH, 1.0)) as one, loader_of(Scaled(LENGTH, 2.0)) as other:
        with pytest.raises(ValueError, match=told):
            list(both(one, other))
        for loader in (one, other):
            with pytest.raises(ValueError, match=told):
                list(loader)


def test_no_batch_of_another_dataset_is_given_before_the_error() -> None:
    with loader_of(Scaled(LENGTH, 1.0)) as one, loader_of(Scaled(LENGTH, 2.0)) as other:
        given: list[bool] = []

        def compare() -> None:
            for first, second in both(one, other):
                given.extend([sample[2] == 1.0 for sample in first] + [sample[2] == 2.0 for sample in second])

        with pytest.raises(ValueError, match="make different batches"):
            compare()
        assert all(given)


def test_random_samples_are_shared_as_they_were_requested() -> None:
    with loader_of(Unrepeatable(LENGTH)) as one, loader_of(Unrepeatable(LENGTH)) as other:
        same = [first == second for first, second in both(one, other)]
    assert same.count(True) > len(same) // 2


def test_an_error_of_the_dataset_is_raised_in_each_loader() -> None:
    class Failing(Noisy):
        def __getitem__(self, index: int) -> Any:
            if index == 7:
                raise OSError(5, "the disk is gone", "sample-7.jpg")
            return super().__getitem__(index)

    with (
        loader_of(Failing(LENGTH), multiprocessing_context="fork") as one,
        loader_of(Failing(LENGTH), multiprocessing_context="fork") as other,
    ):
        for loader in (one, other):
            with pytest.raises(OSError, match="the disk is gone"):
                list(loader)


DEEDS = st.dictionaries(st.integers(0, 29), st.tuples(st.booleans(), st.sampled_from(["kill", 0, 1, 3])), max_size=4)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deeds=DEEDS)
def test_resizes_and_kills_do_not_change_shared_batches(deeds: dict[int, tuple[bool, str | int]]) -> None:
    with loader_of(Noisy(LENGTH)) as one, loader_of(Noisy(LENGTH), num_workers=2) as other:
        for number, pair in enumerate(both(one, other)):
            assert pair == (EPOCHS[0][number],) * 2
            is_first, deed = deeds.get(number, (True, 1))
            loader = one if is_first else other
            if deed == "kill":
                kill_a_worker(loader, number)
            elif number in deeds:
                loader.resize(int(deed))


def test_an_iterable_style_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="shared_as='test' is for map-style datasets"):
        ElasticDataLoader(Numbers(8), 2, num_workers=1, shared_as="test")


@pytest.mark.parametrize("name", ["", 3])
def test_an_invalid_name_is_refused(name: Any) -> None:
    with pytest.raises(TypeError, match="shared_as must be a name, not"):
        ElasticDataLoader(range(8), num_workers=1, shared_as=name)


def test_a_copy_of_a_loader_has_its_name() -> None:
    with loader_of(range(LENGTH)) as loader, pickle.loads(pickle.dumps(loader)) as copy:
        assert copy.shared_as == "test"
        assert list(copy) == list(loader)


def test_a_loader_that_cannot_share_makes_its_own_batches_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(28, "No space left on device", "/run")

    monkeypatch.setattr(exchange, "NodeFile", fail)
    with pytest.warns(RuntimeWarning, match="batches are not shared as 'test'.*No space left"):
        loader = loader_of(Noisy(LENGTH))
    with loader:
        assert list(loader) == EPOCHS[0]


PROGRAM = """
import os, signal, sys

from torchloader import ElasticDataLoader


class Sampled:
    def __len__(self):
        return 400

    def __getitem__(self, index):
        return index * index


if __name__ == "__main__":
    method, dies = sys.argv[1], sys.argv[2] == "dies"
    options = {"num_workers": 2, "shuffle": True, "seed": 0, "collate_fn": list, "multiprocessing_context": method}
    with ElasticDataLoader(Sampled(), 4, shared_as="programs", **options) as loader:
        print("ready", flush=True)
        sys.stdin.readline()
        batches = []
        for batch in loader:
            batches.append(batch)
            if dies and len(batches) == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            print(len(batches), flush=True)
            sys.stdin.readline()
        loader.set_epoch(0)
        alone = list(ElasticDataLoader(Sampled(), 4, **{**options, "num_workers": 0, "multiprocessing_context": None}))
        print(batches == alone, loader.counters.shared, flush=True)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_programs_share_batches_and_continue_if_one_is_killed(site: Site, method: str) -> None:
    path = site.write("import sys\nsys.modules['torch'] = None\n" + PROGRAM)
    dies, stays = (site.start(sys.executable, path, method, how, stdin=subprocess.PIPE) for how in ("dies", "stays"))
    for number in range(101):
        for program in (dies, stays) if number < 20 else (stays,):
            assert program.stdin is not None
            assert program.stdout is not None
            program.stdout.readline()
            program.stdin.write("\n")
            program.stdin.flush()
    out, err = stays.communicate(timeout=60)
    same, shared = out.split()
    assert (same, err) == ("True", "")
    assert int(shared) > 0
    dies.communicate(timeout=60)
    assert dies.returncode == -signal.SIGKILL
