"""Compares a dictionary that processes of two nodes use with a model, after random operations.

checkpointed.py EXAMPLES STEPS
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from dragon.data.ddict import DDict, DDictCheckpointSyncError
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System
from dragon.native.process import Process
from dragon.native.queue import Queue

KEYS = [f"key {number}" for number in range(6)]
COUNTERS = ["counter 0", "counter 1"]
SIZES = [1, 100, 20_000]
PATIENCE = 30.0
KILLED = "killed"
GONE = None
AS_IT_WAS: Any = object()
RETIRED = "retired"


class Acting:
    """The operations of a worker with its handle."""

    def __init__(self, ddict: DDict) -> None:
        self.ddict = ddict

    def put(self, key: str, number: int, size: int) -> None:
        self.ddict[key] = np.full(size, number)

    def put_new(self, key: str, number: int) -> bool:
        return self.ddict.put_new(key, np.full(100, number))

    def delete(self, key: str) -> bool:
        return self.ddict.pop(key, False) is not False

    def add(self, key: str) -> int:
        return self.ddict.fetch_add(key)

    def read(self, key: str) -> int | None:
        return number_of(self.ddict.get(key))

    def read_all(self) -> dict[str, int | None]:
        return {key: number_of(value) for key, value in self.ddict.items() if not key.startswith(KILLED)}

    def go(self, checkpoint: int) -> None:
        self.ddict.checkpoint_id = checkpoint

    def checkpoint(self) -> int:
        self.ddict.checkpoint()
        return self.ddict.checkpoint_id

    def rollback(self) -> int:
        self.ddict.rollback()
        return self.ddict.checkpoint_id

    def sync(self) -> int:
        self.ddict.sync_to_newest_checkpoint()
        return self.ddict.checkpoint_id


def number_of(value: Any) -> int | None:
    """Return the number that all elements of a value have."""
    if value is None or isinstance(value, int):
        return value
    assert (value == value[0]).all(), "a torn value was read"
    return int(value[0])


def serve(commands: Queue, answers: Queue) -> None:
    """Execute commands and put their results into the other queue."""
    acting = Acting(commands.get())
    while True:
        what, *arguments = commands.get()
        try:
            answers.put(getattr(acting, what)(*arguments))
        except DDictCheckpointSyncError:
            answers.put(RETIRED)


def write_until_killed(ddict: DDict, key: str, done: Queue) -> None:
    number = 0
    while True:
        number += 1
        ddict[key] = np.full(SIZES[number % 3], number)
        done.put(number)


def on(node: int) -> Policy:
    return Policy(placement=Policy.Placement.HOST_ID, host_id=System().nodes[node])


class Worker:
    """A process that uses the dictionary, and its current checkpoint."""

    def __init__(self, ddict: DDict, node: int) -> None:
        self.commands, self.answers = Queue(), Queue()
        self.at = 0
        self.process = Process(serve, (self.commands, self.answers), policy=on(node))
        self.process.start()
        self.commands.put(ddict)

    def begin(self, *command: Any) -> Callable[[], Any]:
        self.commands.put(command)
        return functools.partial(self.answers.get, timeout=PATIENCE)

    def do(self, *command: Any) -> Any:
        return self.begin(*command)()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


WORKERS = st.integers(0, 3)


class Checkpointed(RuleBasedStateMachine):
    """The model: the values written in each checkpoint, and the newest checkpoint of each manager."""

    @initialize(held=st.integers(1, 3), replicas=st.integers(1, 2))
    def make(self, held: int, replicas: int) -> None:
        self.held, self.last = held, 0
        self.ddict = DDict(1, 2, 2**26, working_set_size=held, replicas=replicas)
        self.workers = [Worker(self.ddict, number % 2) for number in range(4)]
        self.place = {key: self.ddict.which_manager(key) for key in KEYS + COUNTERS}
        self.newest = [0, 0]
        self.written: dict[str, dict[int, int | None]] = {key: {} for key in KEYS + COUNTERS}

    def teardown(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.ddict.destroy()

    # ---- the model

    def next_number(self) -> int:
        self.last += 1
        return self.last

    def is_retired(self, at: int, manager: int) -> bool:
        return at < self.newest[manager] - self.held + 1

    def shown(self, key: str, at: int) -> int | None:
        # With one checkpoint held there is one state only.
        versions = [number for number in self.written[key] if number <= at or self.held == 1]
        return self.written[key][max(versions)] if versions else GONE

    def note(self, key: str, at: int, value: int | None) -> None:
        self.newest[self.place[key]] = max(self.newest[self.place[key]], at)  # also where nothing changes
        if value is AS_IT_WAS:
            return
        if self.held == 1:
            self.written[key].clear()
        self.written[key][at] = value

    def write(self, worker: Worker, key: str, value: Any, *command: Any) -> Any:
        """Let a worker write; if its checkpoint is retired, it must report that."""
        answer = worker.do(*command)
        if self.is_retired(worker.at, self.place[key]):
            assert answer == RETIRED
            return RETIRED
        assert answer != RETIRED, (command, worker.at, self.newest)
        self.note(key, worker.at, value)
        self.all_see(key)
        return answer

    def all_see(self, key: str) -> None:
        """Check that all workers read the acknowledged value."""
        seeing = [worker for worker in self.workers if not self.is_retired(worker.at, self.place[key])]
        reading = [worker.begin("read", key) for worker in seeing]
        assert [read() for read in reading] == [self.shown(key, worker.at) for worker in seeing]

    # ---- one at a time

    @rule(who=WORKERS, key=st.sampled_from(KEYS), size=st.sampled_from(SIZES))
    def put(self, who: int, key: str, size: int) -> None:
        number = self.next_number()
        self.write(self.workers[who], key, number, "put", key, number, size)

    @rule(who=WORKERS, key=st.sampled_from(KEYS))
    def put_new(self, who: int, key: str) -> None:
        worker, number = self.workers[who], self.next_number()
        before = self.shown(key, worker.at)
        answer = self.write(worker, key, number if before is GONE else AS_IT_WAS, "put_new", key, number)
        assert answer in (RETIRED, before is GONE)

    @rule(who=WORKERS, key=st.sampled_from(KEYS))
    def delete(self, who: int, key: str) -> None:
        before = self.shown(key, self.workers[who].at)
        after = AS_IT_WAS if before is GONE else GONE
        assert self.write(self.workers[who], key, after, "delete", key) in (RETIRED, before is not GONE)

    @rule(who=WORKERS, key=st.sampled_from(COUNTERS))
    def add(self, who: int, key: str) -> None:
        before = self.shown(key, self.workers[who].at) or 0
        assert self.write(self.workers[who], key, before + 1, "add", key) in (RETIRED, before)

    @rule(who=WORKERS)
    def read_all(self, who: int) -> None:
        worker = self.workers[who]
        if not any(self.is_retired(worker.at, manager) for manager in range(2)):
            shown = {key: self.shown(key, worker.at) for key in KEYS + COUNTERS}
            assert worker.do("read_all") == {key: value for key, value in shown.items() if value is not GONE}

    @rule(who=WORKERS, way=st.sampled_from(["checkpoint", "checkpoint", "rollback", "sync"]))
    def move(self, who: int, way: str) -> None:
        worker = self.workers[who]
        expected = {"checkpoint": worker.at + 1, "rollback": max(0, worker.at - 1), "sync": max(self.newest)}[way]
        worker.at = worker.do(way)
        assert worker.at == expected

    # ---- all at the same time

    @rule(size=st.sampled_from(SIZES))
    def write_and_read_together(self, size: int) -> None:
        at = max(self.newest)
        for worker in self.workers:
            worker.do("go", at)
            worker.at = at
        before = [self.shown(key, at) for key in KEYS[:2]]
        numbers = [self.next_number() for _ in range(2)]
        writing = [self.workers[i].begin("put", KEYS[i], numbers[i], size) for i in range(2)]
        reading = [self.workers[2 + i].begin("read", KEYS[i]) for i in range(2)]
        adding = [worker.begin("add", COUNTERS[0]) for worker in self.workers]
        counted = self.shown(COUNTERS[0], at) or 0
        for i in range(2):
            assert writing[i]() is None
            assert reading[i]() in (before[i], numbers[i])
            self.note(KEYS[i], at, numbers[i])
        assert sorted(answer() for answer in adding) == list(range(counted, counted + 4))
        self.note(COUNTERS[0], at, counted + 4)
        for key in (*KEYS[:2], COUNTERS[0]):
            self.all_see(key)

    @rule(node=st.integers(0, 1), writes=st.integers(1, 20))
    def kill_a_writer(self, node: int, writes: int) -> None:
        # A key of its own: what it had sent when it was killed may be done at any time later.
        key, at, done = f"{KILLED} {self.next_number()}", max(self.newest), Queue()
        self.ddict.checkpoint_id = at
        process = Process(write_until_killed, (self.ddict, key, done), policy=on(node))
        process.start()
        acknowledged = [done.get(timeout=PATIENCE) for _ in range(writes)][-1]
        process.kill()
        process.join()
        for worker in self.workers:
            worker.do("go", at)
            worker.at = at
        assert min(worker.do("read", key) for worker in self.workers) >= acknowledged
        manager = self.ddict.which_manager(key)
        self.newest[manager] = max(self.newest[manager], at)

    @rule(who=WORKERS)
    def kill_a_worker(self, who: int) -> None:
        at = self.workers[who].at
        self.workers[who].kill()
        self.workers[who] = Worker(self.ddict, who % 2)
        self.workers[who].do("go", at)
        self.workers[who].at = at


def main() -> None:
    examples, steps = map(int, sys.argv[1:])
    run_state_machine_as_test(
        Checkpointed,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=[Phase.generate],  # the steps that failed are said as they are: to shorten them takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
    print("the model agrees")


if __name__ == "__main__":
    main()
