"""Frameworks that create a loader from an elastic one: each rank gets its part of the samples."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any

import pytest

from conftest import Site
from torchloader import ElasticDataLoader
from torchloader.streaming import shard

data = pytest.importorskip("torch.utils.data")
torch = pytest.importorskip("torch")

OPTIONS: list[dict[str, Any]] = [
    {"batch_size": 3},
    {"batch_size": 3, "shuffle": True},
    {"batch_size": 3, "shuffle": True, "seed": 7},
    {"batch_size": 3, "num_workers": 1, "timeout": 60},
]


def samples(batches: Iterable[Any]) -> list[int]:
    return list(chain.from_iterable(batch.tolist() if hasattr(batch, "tolist") else batch for batch in batches))


def collate(made: list[int]) -> Any:
    """Return a batch whose type shows that this function was used."""
    return torch.tensor(made, dtype=torch.int16)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("seedable", [False, True])
def test_accelerate_divides_the_samples_between_ranks(options: dict[str, Any], seedable: bool) -> None:
    accelerate = pytest.importorskip("accelerate.data_loader")
    ranks = []
    for rank in range(2):
        torch.manual_seed(3)  # which a launched program synchronises
        loader = ElasticDataLoader(range(24), collate_fn=collate, **options)
        ranks.append(
            accelerate.prepare_data_loader(
                loader, num_processes=2, process_index=rank, use_seedable_sampler=seedable, rng_types=[]
            )
        )
    for epoch in range(2):
        torch.manual_seed(epoch)
        first = list(ranks[0])
        torch.manual_seed(epoch)
        second = list(ranks[1])
        assert all(batch.dtype == torch.int16 for batch in first + second)
        assert sorted(samples(first) + samples(second)) == list(range(24))


class Lines(data.IterableDataset):  # type: ignore[misc]
    """Numbers, which are divided between the workers."""

    def __iter__(self) -> Any:
        return shard(range(24))


def test_accelerate_divides_the_samples_of_an_iterable_dataset() -> None:
    accelerate = pytest.importorskip("accelerate.data_loader")
    options = {"num_processes": 2, "dispatch_batches": False, "rng_types": []}
    ranks = [
        accelerate.prepare_data_loader(ElasticDataLoader(Lines(), 3), process_index=rank, **options) for rank in (0, 1)
    ]
    assert sorted(samples(ranks[0]) + samples(ranks[1])) == list(range(24))


def test_lightning_creates_an_elastic_loader_with_the_same_streams() -> None:
    lightning = pytest.importorskip("lightning.pytorch.utilities.data")
    from lightning.pytorch.trainer.states import RunningStage

    loader = ElasticDataLoader(Lines(), 3, streams=2, snapshot_every_n_steps=4)
    again = lightning._update_dataloader(loader, None, mode=RunningStage.TRAINING)
    assert (type(again), again.streams, again.snapshot_every_n_steps) == (ElasticDataLoader, 2, 4)
    assert samples(again) == samples(loader)


PREPARED = """
import sys, warnings
import torch
from torchloader import ElasticDataLoader

warnings.filterwarnings("error", message="torch.distributed has")

if __name__ == "__main__":
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(accelerator.process_index)
    whole = ElasticDataLoader(range(24), 3, shuffle=True, num_workers=1)
    prepared = accelerator.prepare(whole)
    for _ in range(2):
        print(*(index for batch in prepared for index in batch.tolist()))
    place = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    own = ElasticDataLoader(range(24), 3, shuffle=True, num_workers=1, **place)
    kept = accelerator.prepare(own)
    assert kept is own
    print(*(index for batch in kept for index in batch.tolist()))
    whole.close(), own.close()
    accelerator.end_training()
"""

FITTED = """
import os, sys, warnings
import torch
from torchloader import ElasticDataLoader

warnings.filterwarnings("error", message="torch.distributed has")

if __name__ == "__main__":
    import lightning.pytorch as lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def training_step(self, batch, number):
            loader = self.trainer.train_dataloader
            assert type(loader) is ElasticDataLoader and loader.num_workers == 1
            self.seen.append(batch.int().tolist())
            return self.layer(batch.float().unsqueeze(1)).sum()

        def on_train_epoch_end(self):
            print(*sum(self.seen, []))
            self.seen.clear()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    def fit(loader, epochs):
        trainer = lightning.Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=epochs, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=True,
        )
        trainer.fit(Model(), loader)

    fit(ElasticDataLoader(range(24), 3, shuffle=True, num_workers=1), 2)
    place = {"rank": int(os.environ["RANK"]), "world_size": 2}
    fit(ElasticDataLoader(range(24), 3, shuffle=True, num_workers=1, **place), 1)
"""


TRAINED = """
import os, sys, warnings
import torch
from torchloader import ElasticDataLoader

warnings.filterwarnings("error", message="torch.distributed has")

def collate(samples):
    return {"x": torch.tensor(samples)}

if __name__ == "__main__":
    import transformers

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def forward(self, x):
            self.seen += x.int().tolist()
            return {"loss": self.layer(x.float().unsqueeze(1)).sum()}

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            loader = ElasticDataLoader(range(24), 3, shuffle=True, num_workers=1, collate_fn=collate, **place)
            return self.accelerator.prepare(loader)

    class Told(transformers.TrainerCallback):
        def on_epoch_end(self, *_, model, **__):
            model = getattr(model, "module", model)
            print(*model.seen, flush=True)
            model.seen.clear()

    def train(epochs):
        options = transformers.TrainingArguments(
            sys.argv[1], num_train_epochs=epochs, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
            logging_strategy="no", remove_unused_columns=False,
        )
        Trainer(Model(), options, train_dataset=range(24), callbacks=[Told()]).train()

    place = {}
    train(2)
    place = {"rank": int(os.environ["RANK"]), "world_size": 2}
    train(1)
"""


@pytest.mark.parametrize(
    ("library", "program", "epochs"),
    [("accelerate", PREPARED, 3), ("lightning", FITTED, 3), ("transformers", TRAINED, 3)],
    ids=["accelerate", "lightning", "transformers"],
)
def test_two_ranks_share_the_samples(site: Site, library: str, program: str, epochs: int) -> None:
    pytest.importorskip(library)
    file, ranks = site.write(program), []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for rank in range(2):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0}
        run = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "one"}
        variables = [f"{name}={value}" for name, value in {**place, **run}.items()]
        ranks.append(site.start("env", *variables, sys.executable, file, site.folder / "out"))
    told = [rank.communicate(timeout=200) for rank in ranks]
    lines = [[line for line in output.splitlines() if line[:1].isdigit()] for output, _ in told]
    assert [len(each) for each in lines] == [epochs, epochs], told
    for first, second in zip(*lines, strict=True):
        assert sorted(map(int, (first + " " + second).split())) == list(range(24))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("mode", ["training", "predicting"])
def test_lightning_creates_an_elastic_loader_with_its_sampler(options: dict[str, Any], mode: str) -> None:
    lightning = pytest.importorskip("lightning.pytorch.utilities.data")
    from lightning.pytorch.trainer.states import RunningStage

    stage = RunningStage.TRAINING if mode == "training" else RunningStage.PREDICTING
    found: list[int] = []
    for rank in range(2):
        loader = ElasticDataLoader(range(24), collate_fn=collate, **options)
        sampler = data.DistributedSampler(loader.dataset, 2, rank, shuffle=bool(options.get("shuffle")))
        again = lightning._update_dataloader(loader, sampler, mode=stage)
        assert type(again) is ElasticDataLoader
        assert (again.num_workers, again.timeout) == (loader.num_workers, loader.timeout)
        assert again.state_dict()["seed"] == options.get("seed", again.seed)
        with again:
            found += samples(again)
    assert sorted(found) == list(range(24))


def test_lightning_predicts_with_the_sampler_of_a_rank() -> None:
    lightning = pytest.importorskip("lightning.pytorch.utilities.data")
    from lightning.pytorch.trainer.states import RunningStage

    found: list[int] = []
    for rank in range(2):
        loader = ElasticDataLoader(range(24), 3, shuffle=True, rank=rank, world_size=2)
        again = lightning._update_dataloader(loader, loader.sampler, mode=RunningStage.PREDICTING)
        found += samples(again)
    assert sorted(found) == list(range(24))


@pytest.mark.parametrize("options", OPTIONS)
def test_ignite_creates_an_elastic_loader_with_its_batches(options: dict[str, Any]) -> None:
    ignite = pytest.importorskip("ignite.engine.deterministic")
    loader = ElasticDataLoader(range(24), collate_fn=collate, **options)
    with ignite.update_dataloader(loader, ignite.ReproducibleBatchSampler(loader.batch_sampler)) as again:
        assert type(again) is ElasticDataLoader
        assert sorted(samples(again)) == list(range(24))
        assert next(iter(again)).dtype == torch.int16


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_of_hugging_face_are_those_of_pytorch(workers: int) -> None:
    """Also with shuffle(), whose state leaves out its buffer."""
    datasets = pytest.importorskip("datasets")
    numbers = datasets.Dataset.from_dict({"number": list(range(103))}).to_iterable_dataset(num_shards=5)
    shuffled = numbers.shuffle(seed=3, buffer_size=20).with_format("torch")
    options = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    expected, made = (
        [batch["number"].tolist() for batch in kind(shuffled, 8, **options)]
        for kind in (data.DataLoader, ElasticDataLoader)
    )
    assert made == expected


@pytest.mark.filterwarnings("ignore:.* does not continue from its state_dict:RuntimeWarning")
def test_a_shuffled_stream_of_hugging_face_is_resumed_without_loss() -> None:
    datasets = pytest.importorskip("datasets")
    numbers = datasets.Dataset.from_dict({"number": list(range(103))}).to_iterable_dataset(num_shards=5)
    shuffled = numbers.shuffle(seed=3, buffer_size=20)
    first, second = (ElasticDataLoader(shuffled, 8, streams=2, seed=1) for _ in range(2))
    whole = [batch["number"].tolist() for batch in first]
    first.set_epoch(0)
    batches = iter(first)
    begun = [next(batches)["number"].tolist() for _ in range(5)]
    second.load_state_dict(first.state_dict())
    assert begun + [batch["number"].tolist() for batch in second] == whole
