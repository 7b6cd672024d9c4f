"""PyTorch: a DataLoader's workers, kept over epochs, of a map and of an iterable data set, and an error in one."""

import multiprocessing as mp
import os

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import dragon  # noqa: F401


class Squares(Dataset):
    def __init__(self, length, bad=None):
        self.length = length
        self.bad = bad

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index == self.bad:
            raise RuntimeError(f"sample {index} is bad")
        return torch.tensor([index, index**2]), os.getpid()


class Shards(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from range(info.id, 20, info.num_workers)


def seed(worker):
    assert get_worker_info().id == worker


if __name__ == "__main__":
    mp.set_start_method("dragon")
    torch.manual_seed(1)
    loader = DataLoader(
        Squares(64), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True, worker_init_fn=seed
    )
    workers = set()
    for _ in range(2):
        seen = []
        for batch, pids in loader:
            seen += batch[:, 0].tolist()
            assert (batch[:, 0] ** 2 == batch[:, 1]).all()
            workers |= set(pids.tolist())
        assert sorted(seen) == list(range(64))
    assert len(workers) == 2
    assert os.getpid() not in workers
    print("map done")
    named = DataLoader(Shards(), batch_size=5, num_workers=2, multiprocessing_context="dragon")
    assert sorted(number for batch in named for number in batch.tolist()) == list(range(20))
    print("iterable done")
    try:
        list(DataLoader(Squares(16, bad=11), num_workers=2))
    except RuntimeError as error:
        said = str(error)
    assert "sample 11 is bad" in said
    print("error done")
