"""The assignment of batches to workers: each batch is given once, whichever workers join, leave and are killed."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

from torchloader.loader.streams import Assignments, Task

PREFETCH = 2


class Play:
    """Workers with random actions, and the queue of each one's assignments."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.assignments: Assignments = Assignments(PREFETCH)
        self.queues: dict[int, deque[tuple[int, int]]] = {}
        self.leaving: set[int] = set()
        self.given: list[int] = []
        self.born = 0

    def hand_out(self) -> None:
        for worker, key, task in self.assignments.hand_out():
            assert worker not in self.leaving
            assert key == task[:2]
            self.queues[worker].append(key)
            assert len(self.queues[worker]) <= PREFETCH

    def join(self) -> None:
        self.queues[self.born] = deque()
        self.assignments.join(self.born)
        self.born += 1

    def work(self, worker: int) -> None:
        key = self.queues[worker].popleft()
        if self.assignments.made(worker, key):
            self.given.append(key[1])

    def leave(self, worker: int) -> None:
        self.leaving.add(worker)
        self.assignments.leave(worker)
        while len(self.queues[worker]) > 1:
            self.queues[worker].pop()

    def end(self, worker: int) -> None:
        self.assignments.gone(worker, died=worker not in self.leaving)
        del self.queues[worker]
        self.leaving.discard(worker)

    def step(self) -> None:
        staying = [worker for worker in self.queues if worker not in self.leaving]
        deed = self.dice.choice(["join", "leave", "end", "work", "work", "work"])
        if deed == "join" or not self.queues:
            self.join()
        elif deed == "leave" and staying:
            self.leave(self.dice.choice(staying))
        elif deed == "end":
            self.end(self.dice.choice(list(self.queues)))
        else:
            busy = [worker for worker, queue in self.queues.items() if queue]
            if busy:
                self.work(self.dice.choice(busy))
        self.hand_out()


@pytest.mark.parametrize("seeds", [range(start, start + 1000) for start in range(0, 10_000, 1000)], ids=str)
def test_every_batch_is_given_once(seeds: range) -> None:
    for seed in seeds:
        play = Play(seed)
        for number in range(30):
            play.assignments.want((1, number), Task(1, number, 0, [number]))
            play.step()
        for _ in range(play.dice.randrange(60)):
            play.step()
        play.join()
        play.hand_out()
        while any(play.queues.values()):
            play.work(next(worker for worker, queue in play.queues.items() if queue))
            play.hand_out()
        assert sorted(play.given) == list(range(30)), seed


def test_the_oldest_batches_are_assigned_first_also_after_a_worker_was_lost() -> None:
    assignments: Assignments = Assignments(2)
    for number in range(4):
        assignments.want((1, number), Task(1, number, 0, [number]))
    assignments.join(0)
    assert [key for _, key, _ in assignments.hand_out()] == [(1, 0), (1, 1)]
    assignments.gone(0, died=True)
    assignments.join(1)
    assert [key for _, key, _ in assignments.hand_out()] == [(1, 0), (1, 1)]


def test_a_batch_that_ended_three_workers_is_reported() -> None:
    assignments: Assignments = Assignments(2)
    assignments.want((1, 5), Task(1, 5, 0, [5]))
    told = []
    for worker in range(3):
        assignments.join(worker)
        list(assignments.hand_out())
        told.append(assignments.gone(worker, died=True))
    assert told == [None, None, (1, 5)]


def test_batches_that_are_no_longer_wanted_are_not_made() -> None:
    assignments: Assignments = Assignments(2)
    assignments.want((1, 0), Task(1, 0, 0, [0]))
    assignments.want((2, 0), Task(2, 0, 0, [0]))
    assignments.drop(1)
    assignments.join(0)
    assert [key for _, key, _ in assignments.hand_out()] == [(2, 0)]


def test_workers_with_dropped_batches_get_new_ones() -> None:
    assignments: Assignments = Assignments(PREFETCH)
    assignments.join(0)
    for number in range(PREFETCH):
        assignments.want((1, number), Task(1, number, 0, [number]))
    assert len(list(assignments.hand_out())) == PREFETCH
    assignments.drop(1)
    assignments.want((2, 0), Task(2, 0, 0, [0]))
    assert list(assignments.hand_out()) == [(0, (2, 0), Task(2, 0, 0, [0]))]
