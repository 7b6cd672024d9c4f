"""A training program that takes milliseconds and has all state that is hard to resume: momentum, a schedule, dropout,
batch normalisation, and noise from the data and from the program.
"""

from __future__ import annotations

import base64
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tiny_data import FEATURES, Points, stacked
from torch import nn

from dragon.native.queue import Queue
from torchloader.streaming import ShuffleBuffer
from torchloader.training.protocol import Order, Report, decode_report, encode
from torchloader.training.session import Left, Session

EPOCHS = 3
BATCH = 4
STEPS = 12  # batches of one rank in an epoch


class Master:
    """The master's end of a rank's connection."""

    def __init__(self) -> None:
        self.orders, self.reports = Queue(0), Queue(0)

    def order(self, order: Order) -> None:
        self.orders.put(encode(order))

    def environment(self, folder: Path, **more: object) -> dict[str, str]:
        names = {"ORDERS": self.orders, "REPORTS": self.reports}
        queues = {f"TORCHLOADER_{name}": base64.b64encode(queue.serialize()).decode() for name, queue in names.items()}
        told = {"TORCHLOADER_APPLICATION": "tiny", "TORCHLOADER_FOLDER": folder, **more}
        return {**queues, **{name: str(value) for name, value in told.items()}}

    def told(self) -> Iterator[Report]:
        """Return the reports received so far."""
        while self.reports.size():
            yield decode_report(self.reports.get(timeout=10))

    def destroy(self) -> None:
        for queue in (self.orders, self.reports):
            queue.destroy()


def train(
    each_step: Callable[[Session, Any], None] = lambda session, loader: None,
    latency: float = 0.0,
    parallel: bool = False,
    **options: Any,
) -> tuple[dict[str, Any], Session]:
    """Train until the end, or until the master requests an end; return the weights and the session."""
    torch.manual_seed(3)
    random.seed(3)
    with Session.join(device="cpu", **options) as session:
        dataset = Points(latency, STEPS * BATCH * session.world_size)
        model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        loader = session.loader(dataset, BATCH, seed=5, shuffle=True, collate_fn=stacked)
        session.restore(model, optimizer, scheduler, loader)
        trained: nn.Module = nn.parallel.DistributedDataParallel(model) if parallel else model
        with loader:
            while session.epoch < EPOCHS:
                for points, labels in session.steps(loader):
                    with session.timed("forward"):
                        noise = torch.randn(len(points), FEATURES) * random.random()
                        outputs = trained(torch.from_numpy(points) + noise)
                        loss = nn.functional.cross_entropy(outputs, torch.from_numpy(labels))
                    with session.timed("backward"):
                        optimizer.zero_grad()
                        loss.backward()  # type: ignore[no-untyped-call]
                    with session.timed("update"):
                        optimizer.step()
                    session.record(loss)
                    each_step(session, loader)
                scheduler.step()
        return {**model.state_dict(), "rate": torch.tensor(scheduler.get_last_lr())}, session


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether weights are equal, bit by bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def rank(folders: tuple[str, str], ports: tuple[str, str, str], results: Queue) -> None:
    """Run one rank of two: train undisturbed, then pause on request and resume. Put the results into a queue."""
    os.environ.update(MASTER_PORT=ports[0], TORCHLOADER_FOLDER=folders[0])
    orders = os.environ.pop("TORCHLOADER_ORDERS")
    undisturbed, _ = train(parallel=True)
    os.environ.update(MASTER_PORT=ports[1], TORCHLOADER_FOLDER=folders[1], TORCHLOADER_ORDERS=orders)
    done: dict[str, Any] = {}
    try:
        train(parallel=True, latency=0.005)
    except Left as left:
        done = {"report": encode(left.report)}
    os.environ["MASTER_PORT"] = ports[2]
    del os.environ["TORCHLOADER_ORDERS"]
    resumed, _ = train(parallel=True)
    results.put({**done, "equal": equal(undisturbed, resumed), "weights": undisturbed["0.weight"].tolist()})


SHUFFLED = ShuffleBuffer(range(48), 4)


def place_of_a_rank(folder: str, ports: list[str], results: Queue) -> None:
    """Run one rank of two that stops in the middle of an epoch of streams and continues. Put its samples into a
    queue.
    """
    given: list[int] = []
    for port, steps in zip(ports, (5, None), strict=True):
        os.environ["MASTER_PORT"] = port
        with Session.join(folder, device="cpu") as session:
            loader = session.loader(SHUFFLED, 2, streams=2, collate_fn=list)
            session.restore(nn.Linear(1, 1), loader=loader)
            for step, batch in enumerate(session.steps(loader), 1):
                given += batch
                if step == steps:
                    session.save()
                    break
    results.put(given)
