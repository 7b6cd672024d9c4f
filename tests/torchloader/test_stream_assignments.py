"""The assignment of streams to workers: the trainer gets each batch once and in order, whichever workers are killed."""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import Any

import pytest
from stream_datasets import Buffered, Noisy, OtherProtocol, StatefulDataset, StatefulIterator, Unloadable

from torchloader.loader.making import StreamMaker
from torchloader.loader.messages import Outcome
from torchloader.loader.randomness import KeptRandomState
from torchloader.loader.streams import (
    HERE,
    Assignments,
    Progress,
    Share,
    Start,
    Stream,
    StreamBatch,
    StreamOrder,
    Task,
    Turns,
)

LENGTH, BATCH, STREAMS, EPOCH = 41, 3, 4, 2


def maker_of(dataset: Any, snapshot_every: int) -> StreamMaker:
    return StreamMaker(dataset, list, None, BATCH, False, 5, snapshot_every)


class Play:
    """A trainer and workers with random actions."""

    def __init__(self, seed: int, dataset: Any, snapshot_every: int) -> None:
        self.dice, self.dataset, self.snapshot_every = Random(seed), dataset, snapshot_every
        self.assignments = Assignments(2)
        self.order = StreamOrder(dataset, 5, BATCH, False, STREAMS, 0, 1)
        self.makers: dict[int, StreamMaker] = {HERE: maker_of(dataset, snapshot_every)}
        self.queues: dict[int, deque[Task | Stream]] = {}  # tasks, and streams to be released
        self.leaving: set[int] = set()
        self.results: deque[tuple[int, Task, Outcome]] = deque()
        self.made: dict[int, Outcome] = {}
        self.ahead: dict[int, StreamBatch] = {}  # streams of the batches that were asked for
        self.given: list[Any] = []
        self.born = self.iteration = 0
        self.begin(self.order.beginning())

    def begin(self, place: Any) -> None:
        self.turns = Turns(place)
        self.assignments.drop(self.iteration)
        self.iteration += 1
        self.made, self.ahead, self.asked, self.taken, self.is_over = {}, {}, 0, 0, False
        shares = [self.order.share(stream, STREAMS) for stream in range(STREAMS)]
        self.assignments.begin(self.iteration, place.progress, shares, False)

    def ask(self) -> None:
        while not self.is_over and self.asked - self.taken < self.assignments.window():
            drawn = self.turns.draw()
            if drawn is None:
                self.is_over = True
                return
            batch, key = drawn[0], (self.iteration, self.asked)
            self.assignments.want(key, Task(*key, EPOCH, batch))
            self.ahead[self.asked] = batch
            self.asked += 1
            self.hand_out()

    def hand_out(self) -> None:
        for worker, _, task in self.assignments.hand_out():
            assert worker not in self.leaving
            self.queues[worker].append(task)
        for worker, stream in self.assignments.released():
            if worker in self.queues:
                self.queues[worker].append(stream)

    def join(self) -> None:
        self.queues[self.born] = deque()
        self.makers[self.born] = maker_of(self.dataset, self.snapshot_every)
        self.assignments.join(self.born)
        self.born += 1

    def work(self, worker: int) -> None:
        task = self.queues[worker].popleft()
        if not isinstance(task, Task):
            self.makers[worker].release(*task)
            return
        with KeptRandomState():
            self.results.append((worker, task, self.makers[worker].make(task)))

    def receive(self) -> None:
        worker, task, made = self.results.popleft()
        if self.assignments.made(worker, (task.iteration, task.number), made.progress):
            self.made[task.number] = made

    def leave(self, worker: int) -> None:
        self.leaving.add(worker)
        self.assignments.leave(worker)
        while len(self.queues[worker]) > self.dice.randint(1, 2):  # it may have begun one more
            self.queues[worker].pop()

    def end(self, worker: int) -> None:
        self.assignments.gone(worker, died=worker not in self.leaving)
        del self.queues[worker]
        self.leaving.discard(worker)

    def make_here(self) -> None:
        key = self.iteration, self.taken
        task = self.assignments.task(key)
        if task is not None:
            with KeptRandomState():
                made = self.makers[HERE].make(self.assignments.started(HERE, task))
            self.assignments.made(HERE, key, made.progress)
            self.made[self.taken] = made

    def take(self) -> None:
        while self.taken in self.made:
            made, batch = self.made.pop(self.taken), self.ahead.pop(self.taken)
            self.taken += 1
            self.turns.give(batch, made.progress)
            if not made.is_end:
                self.given.append(made.batch)

    def step(self) -> None:
        staying = [worker for worker in self.queues if worker not in self.leaving]
        busy = [worker for worker in self.queues if self.queues[worker]]
        deeds = ["join", "leave", "end", "here", "resume"] + ["work", "receive", "take"] * 5
        deed = self.dice.choice(deeds)
        self.assignments.expected = len(staying) + self.dice.randint(0, 1)  # one is starting
        if deed == "join" and len(staying) < 6:
            self.join()
        elif deed == "leave" and staying:
            self.leave(self.dice.choice(staying))
        elif deed == "end" and self.queues:
            self.end(self.dice.choice(list(self.queues)))
        elif deed == "here" and not staying:
            self.make_here()
        elif deed == "work" and busy:
            self.work(self.dice.choice(busy))
        elif deed == "receive" and self.results:
            self.receive()
        elif deed == "take":
            self.take()
        elif deed == "resume" and self.dice.random() < 0.1:
            self.begin(self.order.place(self.order.state_of(self.turns.position)))
        self.hand_out()
        self.ask()

    def run(self) -> list[Any]:
        self.ask()
        while not (self.is_over and not self.ahead):
            self.step()
        return self.given


def undisturbed(dataset: Any) -> list[Any]:
    play = Play(0, dataset, 1)
    play.ask()
    while not (play.is_over and not play.ahead):
        play.make_here()
        play.take()
        play.ask()
    return play.given


@pytest.mark.parametrize("snapshot_every", [1, 3])
@pytest.mark.parametrize("kind", [Noisy, StatefulIterator, StatefulDataset, Buffered, Unloadable, OtherProtocol])
@pytest.mark.filterwarnings("ignore:.* does not continue from its state_dict:RuntimeWarning")
def test_random_actions_do_not_change_batches(kind: type[Noisy], snapshot_every: int) -> None:
    dataset = kind(LENGTH)
    expected = undisturbed(dataset)
    assert sorted(number for batch in expected for number, *_ in batch) == list(range(LENGTH))
    for seed in range(60):
        assert Play(seed, dataset, snapshot_every).run() == expected, seed


@pytest.mark.parametrize("dataset", [Noisy(LENGTH), StatefulIterator(LENGTH), StatefulDataset(LENGTH)])
def test_a_stream_continues_after_a_batch_that_another_process_has_made(dataset: Any) -> None:
    start = Start(Progress(), Share(0, 1), frozenset({1}), True)
    tasks = [Task(1, number, EPOCH, StreamBatch(0, number), start=None if number else start) for number in range(3)]
    one, other = maker_of(dataset, 1), maker_of(dataset, 1)
    with KeptRandomState():
        expected = [one.make(task) for task in tasks]
        assert other.make(tasks[0]) == expected[0]
        assert other.make(tasks[2]) == expected[2]


def test_streams_wait_for_the_workers_that_start() -> None:
    assignments = Assignments(2)
    assignments.expected = 3
    order = StreamOrder([], 1, 1, False, 3, 0, 1)
    assignments.begin(1, order.beginning().progress, [order.share(stream, 3) for stream in range(3)], False)
    for stream in range(3):
        assignments.want((1, stream), Task(1, stream, 0, StreamBatch(stream, 0)))
    given = []
    for worker in range(3):
        assignments.join(worker)
        given += [(to, task.indices.stream) for to, _, task in assignments.hand_out()]  # type: ignore[union-attr]
    assert given == [(0, 0), (1, 1), (2, 2)]


def test_streams_are_distributed_evenly() -> None:
    assignments = Assignments(2)
    order = StreamOrder([], 1, 1, False, 8, 0, 1)
    assignments.begin(1, order.beginning().progress, [order.share(stream, 8) for stream in range(8)], False)
    turns = Turns(order.beginning())
    for worker in range(3):
        assignments.join(worker)
    for number in range(16):
        drawn = turns.draw()
        assert drawn is not None
        assignments.want((1, number), Task(1, number, 0, drawn[0]))
    owners: dict[int, int] = {}
    for worker, _, task in assignments.hand_out():
        assert owners.setdefault(task.indices.stream, worker) == worker  # type: ignore[union-attr]
    assert sorted(Counter(owners.values()).values()) == [2, 3, 3]
