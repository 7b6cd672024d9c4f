"""Clients on all nodes use registers, counters, a set and, under a lock, a bank in a replicated dictionary, and a queue
of each node, until a stop is requested; a last client then reads all objects. Each client records its operations.

clients.py FOLDER SEED linearizable|default

Clients begin immediately ("begun" is printed) and end when FOLDER/stop exists. A killed client is replaced.
"""

from __future__ import annotations

import itertools
import os
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dragon.data.ddict import DDict
from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.policy import Policy
from dragon.native.lock import Lock
from dragon.native.machine import Node, System
from dragon.native.process import Process
from dragon.native.queue import Queue
from jepsen.history import FINAL, OPEN, Recorder

PROCESSES, THREADS = 2, 2  # processes on each node, and clients in each
PIECE = 100_000  # bytes
PAUSE = 0.03  # maximum seconds between two operations of a client
AGE = 4.0  # seconds in which a short register is used
OLD, COUNTERS = 2, 2  # the number of objects that are used all the time, besides a pair of each manager
ANSWER = 0.25  # seconds in which a node that is reached answers
LATE = 10.0  # seconds to wait for clients on an unreachable host
ELEMENT = "element "
ACCOUNTS, MONEY = 4, 100  # the number of accounts of a bank, and the initial amount in each


@dataclass(frozen=True)
class Bank:
    """Accounts that one manager holds, and the lock under which they are used."""

    lock: Lock
    accounts: list[str]


@dataclass(frozen=True)
class Things:
    """The objects that clients share. `homes` are the hosts of the dictionary's managers, by manager number. There is a
    bank only if reads are linearizable: a client that may read stale values cannot write values that depend on them.
    """

    folder: Path
    seed: str
    data: str
    queues: dict[str, Queue]
    pairs: list[list[str]]
    homes: list[str]
    bank: Bank | None

    def stopped(self) -> bool:
        return (self.folder / "stop").exists()

    def reached(self) -> Things:
        """Return a copy without the queues of lost nodes, which can no longer be sent to a process."""
        return replace(self, queues=dict(filter(is_reached, self.queues.items())))


def is_reached(named: tuple[str, Queue]) -> bool:
    """Return whether a queue is reachable."""
    try:
        named[1].size()
    except (DragonError, OSError):
        return False
    return True


class Client:
    """A client, which runs in one thread. It uses all objects in turn; a devoted client uses only one. If the node of
    the client decides about that object, the client continues while other nodes are unreachable, and must still see
    correct values.
    """

    def __init__(self, things: Things, name: str, devoted: bool) -> None:
        self._things = things
        self._chance = random.Random(f"{things.seed} {name}")
        self._ddict = DDict.attach(things.data, timeout=self._chance.choice([1.0, 3.0, 8.0, None]))
        self._recorder = Recorder(things.folder, name)
        self._values = (f"{name}-{number}" for number in itertools.count())
        self._loved = self._chance.choice(self._near(name.partition(".")[0])) if devoted else None

    def work(self) -> None:
        while not self._things.stopped():
            known = (self._loved or self._something())()
            time.sleep(self._chance.uniform(0, PAUSE) if known else PAUSE * 10)

    def _old(self) -> dict[str, Callable[[], bool]]:
        """Return a function that uses each long-lived object, by one of its keys."""
        registers, counters = [f"old {number}" for number in range(OLD)], [f"counter {n}" for n in range(COUNTERS)]
        return {
            **{key: partial(self._use_register, key) for key in registers},
            **{keys[0]: partial(self._use_pair, which) for which, keys in enumerate(self._things.pairs)},
            **{key: partial(self._count, key) for key in counters},
        }

    def _near(self, host: str) -> list[Callable[[], bool]]:
        """Return the functions that use the objects about which `host` decides as long as there is no fault."""
        homes = self._things.homes
        return [use for key, use in self._old().items() if homes[self._ddict.which_manager(key)] == host]

    def _something(self) -> Callable[[], bool]:
        short = partial(self._use_register, f"short {int(time.monotonic() / AGE)}")
        old = self._chance.choice(list(self._old().values()))
        uses: list[Callable[[], bool]] = [short, old, self._use_set, self._use_queue]
        weights = [3, 6, 1, 3]
        if self._things.bank is not None:
            uses.append(partial(self._use_bank, self._things.bank))
            weights.append(2)
        return self._chance.choices(uses, weights)[0]

    def _use_register(self, key: str) -> bool:
        value = next(self._values)
        ddict = self._ddict
        calls: dict[str, Callable[[], str | None]] = {
            "get": lambda: ddict.get(key),
            "put": lambda: ddict.__setitem__(key, value),
            "pop": lambda: ddict.pop(key, None),
            "setdefault": lambda: ddict.setdefault(key, value),
        }
        [name] = self._chance.choices(list(calls), [6, 4, 1, 1])
        given = value if name in ("put", "setdefault") else None
        return self._recorder.do(f"register {key}", name, given, calls[name])

    def _use_pair(self, which: int) -> bool:
        keys, ddict = self._things.pairs[which], self._ddict
        if self._chance.random() < 0.5:
            return self._recorder.do(f"pair {which}", "get_many", None, lambda: ddict.get_many(keys))
        value = next(self._values)
        return self._recorder.do(f"pair {which}", "put", value, lambda: ddict.put_many(dict.fromkeys(keys, value)))

    def _count(self, key: str) -> bool:
        if self._chance.random() < 0.3:
            return self._recorder.do(key, "get", None, lambda: self._ddict.get(key, 0))
        by = self._chance.choice([1, 1, 1, 5])
        return self._recorder.do(key, "add", by, lambda: self._ddict.fetch_add(key, by))

    def _use_set(self) -> bool:
        if self._chance.random() < 0.03:
            return self._recorder.do("set", "elements", None, lambda: elements(self._ddict))
        value = next(self._values)
        return self._recorder.do("set", "add", value, lambda: self._ddict.__setitem__(f"{ELEMENT}{value}", 1))

    def _use_bank(self, bank: Bank) -> bool:
        with or_end():
            if not bank.lock.acquire(timeout=1):
                return True
        if self._chance.random() < 0.3:
            known = self._recorder.do("bank", "look", None, lambda: self._ddict.get_many(bank.accounts))
        else:
            giver, taker = self._chance.sample(range(ACCOUNTS), 2)
            amount = self._chance.randint(1, 10)
            known = self._recorder.do("bank", "transfer", amount, lambda: self._transfer(bank, giver, taker, amount))
        with or_end():
            bank.lock.release()
        return known

    def _transfer(self, bank: Bank, giver: int, taker: int, amount: int) -> list[int]:
        """Move money. No other client may see the accounts before the new amounts are known to be written."""
        amounts = self._ddict.get_many(bank.accounts)
        changed = {
            bank.accounts[giver]: amounts[giver] - amount,
            bank.accounts[taker]: amounts[taker] + amount,
        }
        while True:
            try:
                self._ddict.put_many(changed)
                return [changed.get(account, had) for account, had in zip(bank.accounts, amounts, strict=True)]
            except OPEN:
                if self._things.stopped():
                    raise

    def _use_queue(self) -> bool:
        host = self._chance.choice(list(self._things.queues))
        if self._chance.random() < 0.5:
            return self._recorder.do(f"queue {host}", "take", None, lambda: take(self._things.queues[host], 0.05))
        value = next(self._values)
        return self._recorder.do(f"queue {host}", "put", value, lambda: put(self._things.queues[host], value))


@contextmanager
def or_end() -> Iterator[None]:
    """Kill this process if it is unknown whether it holds a lock: if it does, the lock passes to the next process."""
    try:
        yield
    except OPEN as error:
        print(f"process {os.getpid()} may have a lock, and ends: {error}", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def elements(ddict: DDict) -> list[str]:
    return [key.removeprefix(ELEMENT) for key in ddict if key.startswith(ELEMENT)]


def put(target: Queue, message: str) -> bool:
    try:
        target.put(message, timeout=0.5)
    except queue.Full:
        return False
    return True


def take(source: Queue, timeout: float) -> str | None:
    began = time.monotonic()
    try:
        message: str = source.get(timeout=timeout)
    except queue.Empty:
        if time.monotonic() - began > timeout + ANSWER:
            raise TimeoutError("the queue's node did not answer: a message on its way is put back later") from None
        return None
    return message


def use_up_memory(things: Things, host: str) -> None:
    """Allocate all memory for objects on a host whenever the file of `wanted()` exists."""
    while not things.stopped():
        if wanted(things.folder, host).exists():
            own: Queue = Queue(0)
            with suppress(MemoryError):
                while True:
                    own.put(bytes(PIECE))
            while wanted(things.folder, host).exists():
                time.sleep(PAUSE)
            own.destroy()
        time.sleep(PAUSE)


def wanted(folder: Path, host: str) -> Path:
    """Return the path of the file that exists while the memory of a host is to be used up."""
    return folder / f"{host}.full"


def clients(things: Things, name: str) -> None:
    """Run the clients of one process. It writes its id to a file, by which it can be killed."""
    works = [Client(things, f"{name}.{number}", number % 2 == 1).work for number in range(THREADS)]
    host, slot, _ = name.split(".")
    if slot == "0":
        works.append(partial(use_up_memory, things, host))
    threads = [threading.Thread(target=work) for work in works]
    (things.folder / f"{name}.pid").write_text(str(os.getpid()))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def keep_up(things: Things, host: str, slot: int) -> None:
    """Keep a process of clients running on a host, and replace it when it ends."""
    for generation in itertools.count():
        name = f"{host}.{slot}.{generation}"
        process = start(things, host, name)
        if process is None:
            return
        await_end(things, process, name)


def start(things: Things, host: str, name: str) -> Process | None:
    """Start a process of clients as soon as its host is reachable; return None if clients are to stop."""
    said = ""
    while not things.stopped():
        try:
            process = Process(clients, (things.reached(), name), policy=on(host))
            process.start()
            return process
        except (DragonError, OSError) as error:
            said = say(f"{name} is not started: {error}", said)
        time.sleep(1)
    return None


def await_end(things: Things, process: Process, name: str) -> None:
    """Wait for a process to end, also while it is unreachable, and at most LATE seconds longer after clients are told
    to stop.
    """
    deadline, said = float("inf"), ""
    while time.monotonic() < deadline:
        try:
            process.join()
            return
        except (DragonError, OSError) as error:
            said = say(f"{name} is not to be seen: {error}", said)
        time.sleep(1)
        if things.stopped():
            deadline = min(deadline, time.monotonic() + LATE)


def say(what: str, said: str) -> str:
    """Print a message, unless it equals the last one."""
    if what != said:
        print(what, file=sys.stderr)
    return what


def look_at_all(things: Things, ddict: DDict) -> None:
    """Read all objects at the end."""
    recorder = Recorder(things.folder, FINAL)
    for number in range(OLD):
        key = f"old {number}"
        recorder.do(f"register {key}", "get", None, partial(ddict.get, key))
    for which, keys in enumerate(things.pairs):
        recorder.do(f"pair {which}", "get_many", None, partial(ddict.get_many, keys))
    if things.bank is not None:
        recorder.do("bank", "look", None, partial(ddict.get_many, things.bank.accounts))
    for number in range(COUNTERS):
        key = f"counter {number}"
        recorder.do(key, "get", None, partial(ddict.get, key, 0))
    recorder.do("set", "elements", None, lambda: elements(ddict))
    for host, source in things.queues.items():
        drain(recorder, f"queue {host}", source)


def drain(recorder: Recorder, name: str, source: Queue) -> None:
    """Take all messages from a queue, and record that it is empty then."""
    found: list[str | None] = [""]

    def take_one() -> str | None:
        found.append(take(source, 1))
        return found[-1]

    while found[-1] is not None:
        if not recorder.do(name, "take", None, take_one):
            return
    recorder.do(name, "drained", None, lambda: None)


def on(host: str) -> Policy:
    return Policy(placement=Policy.Placement.HOST_NAME, host_name=host)


def by_manager(ddict: DDict, name: str, count: int) -> list[list[str]]:
    """Return `count` keys of each manager."""
    found: dict[int, list[str]] = {}
    for number in range(100):
        found.setdefault(ddict.which_manager(f"{name} {number}"), []).append(f"{name} {number}")
    return [keys[:count] for _, keys in sorted(found.items())]


def main() -> None:
    folder, seed, reads = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    nodes = [Node(ident).hostname for ident in System().nodes]
    ddict = DDict(1, len(nodes), len(nodes) * 2**25, replicas=2, linearizable=reads == "linearizable")
    queues = {host: Queue(50, policy=on(host)) for host in nodes}
    homes = [node.hostname for node in ddict.manager_nodes]
    bank = None
    if reads == "linearizable":
        accounts = random.Random(seed).choice(by_manager(ddict, "account", ACCOUNTS))
        bank = Bank(Lock(), accounts)
        ddict.put_many(dict.fromkeys(accounts, MONEY))
    things = Things(folder, seed, ddict.serialize(), queues, by_manager(ddict, "pair", 2), homes, bank)
    first = Recorder(folder, "first")
    for which, keys in enumerate(things.pairs):
        first.do(f"pair {which}", "put", "first", partial(ddict.put_many, dict.fromkeys(keys, "first")))
    slots = [threading.Thread(target=keep_up, args=(things, host, slot)) for host in nodes for slot in range(PROCESSES)]
    for thread in slots:
        thread.start()
    print("begun", flush=True)
    for thread in slots:
        thread.join()
    look_at_all(things, ddict)
    print("looked at all", flush=True)


if __name__ == "__main__":
    main()
