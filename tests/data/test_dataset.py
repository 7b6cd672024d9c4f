"""A PyTorch dataset whose samples are in a dictionary."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from conftest import Site  # noqa: E402
from dragon.ai.torch import DragonDataset  # noqa: E402
from dragon.data.ddict import DDict, DDictFullError  # noqa: E402
from dragon.infrastructure.errors import DestroyedError  # noqa: E402

Make = Callable[..., DDict]


class Squares(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    """A dataset without an end of its iteration, as most datasets are."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return torch.full((10, 20), float(index)), index**2


def test_a_dataset_is_put_into_a_dictionary() -> None:
    dataset = DragonDataset(Squares())
    assert len(dataset) == len(dataset.dragon_dict) == 100
    sample, label = dataset[7]
    assert (sample.shape, sample[0, 0].item(), label) == ((10, 20), 7.0, 49)
    assert [label for _, label in dataset.__getitems__([3, 1, 3])] == [9, 1, 9]
    with pytest.raises(IndexError):
        dataset[100]
    copy = pickle.loads(pickle.dumps(dataset))
    copy.stop()
    assert copy[2][1] == 4
    dataset.stop()
    with pytest.raises(DestroyedError):
        copy[2]


def test_loaders_without_workers_read_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = DragonDataset(Squares())
    monkeypatch.setattr(DragonDataset, "__getitem__", None)
    batches = list(torch.utils.data.DataLoader(dataset, batch_size=25, shuffle=True))
    assert sorted(label for _, labels in batches for label in labels.tolist()) == [i**2 for i in range(100)]
    dataset.stop()


def test_a_dataset_can_use_an_existing_dictionary(make: Make) -> None:
    ddict = make()
    ddict.update({number: str(number) for number in range(20)})
    dataset = DragonDataset(ddict)
    assert [dataset[i] for i in range(len(dataset))] == [str(number) for number in range(20)]
    some = DragonDataset(ddict, dataset_keys=(5, 3))
    assert (len(some), some[0], some.keys) == (2, "5", [5, 3])
    dataset.stop()
    assert ddict[1] == "1"
    with pytest.raises(ValueError, match="the given one exists"):
        DragonDataset(ddict, dragon_dict_args={"total_mem": 2**20})


@dataclass
class Arguments:
    managers_per_node: int = 2
    n_nodes: int = 1
    total_mem: int = 2**25


def test_a_dataset_can_be_made_from_an_iterable_and_keys() -> None:
    def reused() -> Iterator[np.ndarray]:
        memory = np.empty(50_000)
        for number in range(10):
            memory[:] = number
            yield memory

    dataset = DragonDataset(reused(), dataset_keys="abcdefghij", dragon_dict_args=Arguments())
    assert len(dataset.dragon_dict.stats) == 2
    assert [sample[-1] for sample in dataset.__getitems__(range(10))] == list(range(10))
    assert dataset.dragon_dict["c"][0] == 2
    dataset.stop()


def test_inconsistent_arguments_of_a_dataset_are_refused() -> None:
    memory = {"total_mem": 2**22}
    with pytest.raises(ValueError, match="3 keys for 2 samples"):
        DragonDataset([1, 2], dataset_keys="abc")
    with pytest.raises(ValueError, match="3 keys for 2 samples"):
        DragonDataset(iter([1, 2]), dataset_keys="abc", dragon_dict_args=memory)
    with pytest.raises(ValueError, match="1 keys, and more samples"):
        DragonDataset(iter([1, 2]), dataset_keys="a", dragon_dict_args=memory)
    with pytest.raises(ValueError, match="memory of the samples cannot be estimated"):
        DragonDataset(iter([1, 2]))
    with pytest.raises(TypeError, match="dataset must be a DDict, a dataset, a sequence or an iterable, not 5"):
        DragonDataset(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="dragon_dict_args must be a mapping or a dataclass of what DDict takes, not 5"):
        DragonDataset([1, 2], dragon_dict_args=5)
    with pytest.raises(DDictFullError) as caught:
        DragonDataset([np.ones(2**20)] * 3, dragon_dict_args=memory)
    assert "total_mem" in caught.value.__notes__[0]


LOADERS = """
    import torch
    import dragon
    from dragon.ai.torch import DragonDataset
    from dragon.data.ddict import DDict

    if __name__ == "__main__":
        samples = [(torch.full((300, 40), float(i)), i) for i in range(64)]
        dataset = DragonDataset(samples, dragon_dict_args={"managers_per_node": 1, "n_nodes": NODES,
                                                           "total_mem": 2**27})
        loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=2, shuffle=True,
                                             multiprocessing_context="dragon")
        for epoch in range(2):
            seen = []
            for images, labels in loader:
                assert torch.equal(images[:, 5, 7], labels.float())
                seen += labels.tolist()
            assert sorted(seen) == list(range(64))
        print("all seen", {dataset.dragon_dict.which_manager(i) for i in range(64)})
        dataset.stop()
"""


def test_workers_of_a_loader_read_the_dataset(site: Site) -> None:
    done = site.python(LOADERS.replace("NODES", "1"))
    assert (done.returncode, done.stdout) == (0, "all seen {0}\n"), done.stderr


def test_workers_of_a_loader_read_a_dataset_on_two_nodes(site: Site) -> None:
    done = site.dragon("--nodes", "2", site.write(LOADERS.replace("NODES", "2")))
    assert (done.returncode, done.stdout) == (0, "all seen {0, 1}\n"), done.stderr
