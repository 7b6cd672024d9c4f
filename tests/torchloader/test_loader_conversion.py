"""The conversion of a PyTorch loader to an elastic one with the same settings, or the error that says why not."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import Site
from torchloader import ElasticDataLoader

data = pytest.importorskip("torch.utils.data")
torch = pytest.importorskip("torch")

from torchloader import elastic  # noqa: E402


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4},
        {"batch_size": 3, "drop_last": True},
        {"batch_size": None},
        {"batch_size": 3, "sampler": [5, 1, 3, 3]},
        {"batch_sampler": [[1, 2], [7]]},
        {"batch_size": 4, "num_workers": 1, "prefetch_factor": 3, "timeout": 60},
    ],
)
def test_a_converted_loader_gives_the_same_batches(options: dict[str, Any]) -> None:
    theirs = data.DataLoader(range(10), **options)
    with elastic(theirs) as ours:
        names = ["num_workers", "prefetch_factor", "timeout", "batch_size", "drop_last", "collate_fn"]
        assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
        of_workers = ("num_workers", "prefetch_factor", "timeout")
        alone = {name: value for name, value in options.items() if name not in of_workers}
        assert list(map(str, ours)) == list(map(str, data.DataLoader(range(10), **alone)))


def test_a_shuffled_order_is_replaced_by_that_of_the_elastic_loader() -> None:
    theirs = data.DataLoader(range(10), 2, shuffle=True, generator=torch.Generator().manual_seed(5), collate_fn=list)
    expected = ElasticDataLoader(range(10), 2, shuffle=True, seed=5, collate_fn=list)
    assert list(elastic(theirs)) == list(expected)
    ranks = [elastic(theirs, rank=rank, world_size=2, seed=5, num_workers="auto") for rank in range(2)]
    assert sorted(index for rank in ranks for batch in rank for index in batch) == list(range(10))
    for rank in ranks:
        rank.close()


def test_other_random_samplers_are_used_unchanged() -> None:
    sampler = data.RandomSampler(range(10), replacement=True, num_samples=30)
    loader = elastic(data.DataLoader(range(10), 4, sampler=sampler, collate_fn=list))
    assert loader.sampler is sampler
    assert sum(len(batch) for batch in loader) == 30


def test_options_of_workers_are_dropped_if_there_are_none() -> None:
    theirs = data.DataLoader(range(10), num_workers=2, persistent_workers=True, prefetch_factor=5)
    assert elastic(theirs, num_workers=0).prefetch_factor is None
    assert elastic(theirs).persistent_workers


class Own(data.DataLoader):  # type: ignore[misc]
    """A loader with its own __iter__()."""

    def __iter__(self) -> Any:
        return iter([1])


@pytest.mark.parametrize(
    ("loader", "kind", "told"),
    [
        (range(3), TypeError, r"takes a torch\.utils\.data\.DataLoader, not range"),
        (Own(range(3)), TypeError, r"Own has a __iter__\(\) of its own"),
    ],
)
def test_a_loader_that_cannot_be_converted_is_an_error(loader: Any, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        elastic(loader)


def test_an_elastic_loader_is_returned_unchanged() -> None:
    loader = ElasticDataLoader(range(3))
    assert elastic(loader) is loader
    with pytest.raises(TypeError, match="the loader is elastic"):
        elastic(loader, num_workers=2)


WORDS = """
import sys
from torchloader import ElasticDataLoader

class Modules:
    def __len__(self): return 2
    def __getitem__(self, index): return "torch" in sys.modules
"""
WORKERS = """
import sys
import torchloader, torchloader.loader
from torchloader import LoadingError

if __name__ == "__main__":
    print("torch" in sys.modules)
    from words import ElasticDataLoader, Modules
    print("torch" in sys.modules)
    print(*ElasticDataLoader(Modules(), 2, num_workers=1, collate_fn=list, multiprocessing_context="spawn"))
"""


def test_pytorch_is_imported_only_with_the_loader_and_not_in_workers_of_a_dataset_without_it(site: Site) -> None:
    site.write(WORDS, "words.py")
    done = site.python(WORKERS)
    assert done.stdout == "False\nTrue\n[False, False]\n", done.stderr


WITHOUT = """
import sys
sys.modules["torch"] = None
from torchloader import ElasticDataLoader

loader = ElasticDataLoader(range(8), 4, shuffle=True, seed=1, collate_fn=list)
print(loader.sampler, loader.batch_sampler, loader.collate_fn, sorted(sum(loader, [])))
loader = ElasticDataLoader(range(8), 4, rank=1, world_size=2, collate_fn=list)
print(*loader)
"""


def test_a_loader_works_without_pytorch(site: Site) -> None:
    done = site.python(WITHOUT)
    assert done.stdout == "None None <class 'list'> [0, 1, 2, 3, 4, 5, 6, 7]\n[4, 5, 6, 7]\n", done.stderr
