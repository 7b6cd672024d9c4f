"""The GPU job: train a small convolutional network on handwritten digits, each worker with its own learning rate."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss
from torch.optim import Adadelta
from torch.optim.lr_scheduler import StepLR

# isort: split
from telem import Message, Progress, leave_interrupts_to_main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.queues import Queue

    from mnist_data import Digits

# The mean and the standard deviation of MNIST's pixels.
MEAN, DEVIATION = 0.1307, 0.3081


@dataclass(frozen=True)
class Training:
    """The settings and data that all workers share."""

    batch_size: int
    test_batch_size: int
    epochs: int
    gamma: float
    seed: int
    workers_per_node: int


@dataclass(frozen=True)
class Result:
    """The loss and accuracy of the network of one learning rate on the test images."""

    learning_rate: float
    loss: float
    accuracy: float

    def line(self) -> str:
        return f"Final test for learning rate {self.learning_rate}: loss: {self.loss} accuracy: {self.accuracy}"


class Trainer:
    """Trains networks on one device, which holds all the images."""

    def __init__(self, device: torch.device, digits: Digits, training: Training, messages: Queue[Message]) -> None:
        self.device, self.training, self.messages = device, training, messages
        self.train_images, self.train_labels = self._tensors(digits.train_images, digits.train_labels)
        self.test_images, self.test_labels = self._tensors(digits.test_images, digits.test_labels)

    def train(self, learning_rate: float) -> Result:
        torch.manual_seed(self.training.seed)
        net = network().to(self.device)
        optimizer = Adadelta(net.parameters(), lr=learning_rate)
        scheduler = StepLR(optimizer, step_size=1, gamma=self.training.gamma)
        for _ in range(self.training.epochs):
            self._epoch(net, optimizer, f"mnist lr {learning_rate}")
            scheduler.step()
        return self._test(net, learning_rate)

    def _epoch(self, net: nn.Module, optimizer: Adadelta, job: str) -> None:
        net.train()
        order = torch.randperm(len(self.train_images)).to(self.device)
        batches = order.split(self.training.batch_size)
        for batch in batches:
            optimizer.zero_grad()
            nll_loss(net(normalized(self.train_images[batch])), self.train_labels[batch]).backward()
            optimizer.step()
            self.messages.put(Progress(job, len(batches) * self.training.epochs))

    @torch.no_grad()
    def _test(self, net: nn.Module, learning_rate: float) -> Result:
        net.eval()
        loss, correct = 0.0, 0
        for images, labels in self._test_batches():
            output = net(normalized(images))
            loss += nll_loss(output, labels, reduction="sum").item()
            correct += int((output.argmax(dim=1) == labels).sum())
        count = len(self.test_labels)
        return Result(learning_rate, loss / count, round(100 * correct / count, 2))

    def _test_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        size = self.training.test_batch_size
        return zip(self.test_images.split(size), self.test_labels.split(size), strict=True)

    def _tensors(self, images: object, labels: object) -> tuple[Tensor, Tensor]:
        return (
            torch.tensor(images, device=self.device).unsqueeze(1),
            torch.tensor(labels, device=self.device, dtype=torch.int64),
        )


class Worker:
    """The state that a process of the pool keeps between its start and its training."""

    device: torch.device
    digits: Digits
    training: Training
    messages: Queue[Message]


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
        nn.LogSoftmax(dim=1),
    )


def normalized(images: Tensor) -> Tensor:
    return (images.float() / 255 - MEAN) / DEVIATION


def learning_rates(workers: int) -> list[float]:
    return [0.5 + worker for worker in range(workers)]


def threads_per_worker(cpus: int, workers: int) -> int:
    return max(1, cpus // workers)


def start_worker(devices: Queue[str], digits: Digits, training: Training, messages: Queue[Message]) -> None:
    leave_interrupts_to_main()
    # Without a limit every worker starts a thread per CPU, and the threads compete for the CPUs.
    torch.set_num_threads(threads_per_worker(len(os.sched_getaffinity(0)), training.workers_per_node))
    Worker.device = take_device(devices)
    Worker.digits, Worker.training, Worker.messages = digits, training, messages


def device_names(gpus: int) -> list[str]:
    return [f"cuda:{index}" for index in range(gpus)] or ["cpu"]


def take_device(devices: Queue[str]) -> torch.device:
    """Take the node's next device; it is put back at the end of the queue, so that more workers than devices share
    them.
    """
    name = devices.get()
    devices.put(name)
    # The driver may see a GPU that this build of PyTorch cannot use.
    return torch.device(name if torch.cuda.is_available() else "cpu")


def train(learning_rate: float) -> Result:
    # The device is first used here and not in the initializer: an error of a task reaches the main program.
    trainer = Trainer(Worker.device, Worker.digits, Worker.training, Worker.messages)
    return trainer.train(learning_rate)
