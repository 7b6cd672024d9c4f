"""Several trainers that share an epoch: they use the same order, or get an error or a warning."""

from __future__ import annotations

import warnings
from itertools import chain
from typing import Any

import pytest
from loader_datasets import Noisy

from conftest import Site
from torchloader import ElasticDataLoader


def test_ranks_without_a_seed_share_each_epoch_although_one_reads_a_batch_before() -> None:
    torch = pytest.importorskip("torch")
    ranks = []
    for rank in range(2):
        with torch.random.fork_rng([]):
            torch.manual_seed(rank)  # as with a seed of each rank's own
            loader = ElasticDataLoader(range(24), 3, shuffle=True, rank=rank, world_size=2, collate_fn=list)
        if rank == 0:
            next(iter(loader))  # a look at the data
        ranks.append([list(chain.from_iterable(loader)) for _ in range(2)])
    epochs = [first + second for first, second in zip(*ranks, strict=True)]
    assert [sorted(samples) for samples in epochs] == [list(range(24))] * 2
    assert epochs[0] != epochs[1]


def test_ranks_with_generators_that_may_differ_are_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"pass seed= \(the same on all ranks\) instead of generator="):
        ElasticDataLoader(Noisy(8), shuffle=True, rank=0, world_size=2, generator=torch.Generator())


def test_a_number_of_ranks_without_a_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="world_size=2 needs rank="):
        ElasticDataLoader(Noisy(8), world_size=2)


UNAWARE = """
import os, sys, warnings
import torch.distributed as dist
from torch.utils.data import DistributedSampler
from torchloader import ElasticDataLoader

rank = int(os.fork() == 0)  # both have imported PyTorch already
store = dist.FileStore(sys.argv[1], 2)
data = range(8)
early = ElasticDataLoader(data, collate_fn=list)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)

def warned(make):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loader = make()
        for _ in range(2):
            iter(loader)
    assert all("every rank all samples: pass rank= and world_size=" in str(each.message) for each in told), told
    assert all(each.filename == __file__ for each in told), told
    return len(told)

told = [
    warned(lambda: early),
    warned(lambda: ElasticDataLoader(data, collate_fn=list)),
    warned(lambda: ElasticDataLoader(data, collate_fn=list, world_size=1)),
    warned(lambda: ElasticDataLoader(data, collate_fn=list, sampler=DistributedSampler(data))),
]
os.write(1, f"{told}\\n".encode())  # a line at once
dist.barrier()
assert rank or os.wait()[1] == 0
"""


def test_a_loader_without_rank_in_a_distributed_program_warns_once(site: Site) -> None:
    pytest.importorskip("torch")
    done = site.python(UNAWARE, str(site.folder / "store"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 1, 0, 0]\n" * 2, "")


def ranked(**options: Any) -> ElasticDataLoader:
    return ElasticDataLoader(range(24), 3, shuffle=True, rank=1, world_size=2, collate_fn=list, **options)


def test_only_whole_epochs_count_with_several_ranks() -> None:
    expected, loader = ranked(), ranked()
    first, second = list(expected), list(expected)
    assert next(iter(loader)) == first[0]
    assert [batch for batch, _ in zip(loader, range(5), strict=False)] == first
    assert list(loader) == second


def test_reading_a_batch_does_not_change_the_loaded_position_of_a_rank() -> None:
    loader, other = ranked(), ranked()
    batches = iter(loader)
    begun = [next(batches) for _ in range(2)]
    other.load_state_dict(loader.state_dict())
    next(iter(other))
    assert begun + list(other) == list(ranked())


def test_an_epoch_that_is_restarted_gives_a_warning() -> None:
    loader = ranked()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(loader))
        batches = iter(loader)
    next(batches), next(batches)
    with pytest.warns(UserWarning, match="epoch 0 begins once more"):
        iter(loader)
    loader.set_epoch(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iter(loader)


def test_set_epoch_discards_a_loaded_position() -> None:
    loader, other = ranked(), ranked()
    next(iter(loader))
    other.load_state_dict(loader.state_dict())
    other.set_epoch(1)
    assert len(list(other)) == 4
