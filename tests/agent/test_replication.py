"""The replicas of a shard in a simulated network: messages are late, connections break, and nodes are declared lost
while they still run. Every acknowledged write holds, and is applied once.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dragon.agent.shards import replication
from dragon.agent.shards.answers import Holding, Whose
from dragon.agent.shards.replication import Replication
from dragon.infrastructure.errors import DestroyedError, NodeLostError
from dragon.launcher.frontend import Decisions
from dragon.runtime.protocol.agents import Proposal
from dragon.runtime.protocol.shards import CreateShard, Settings, ShardChannel
from dragon.runtime.rpc import error_of
from dragon.shards.operations import Identity, Reply, Request, Result, Tag

WHOSE, WORDS = ("dictionary", 0), (0, 0, 0)
STEPS = 2500
SEEDS = int(os.environ.get("SEEDS", "8"))  # a long run: SEEDS=5000 pytest tests/agent/test_replication.py
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Request | Reply).decode


class Entries:
    """The entries of a shard; each operation completes at once."""

    newest, is_frozen, is_chosen, since, where = 0, False, False, 0, "the shard"

    def __init__(self, replicas: int) -> None:
        self.settings = Settings(0, 1, 2**20, holders=list(range(replicas)))
        self.held: dict[bytes, int] = {}

    def add(self, key: bytes, value: int, checkpoint: int) -> int:
        before = self.held.get(key, 0)
        self.held[key] = before + value
        return before

    def sizes(self, checkpoint: int) -> list[tuple[bytes, int]]:
        """Return all entries."""
        return list(self.held.items())

    def export(self, most: int) -> Iterator[tuple[list[bytes], list[Any]]]:
        for key, value in self.held.items():
            yield [key], [str(value).encode()]

    def load(self, names: list[bytes], data: list[Any]) -> None:
        self.held.update(zip(names, map(int, data), strict=True))

    def take_over(self, newest: int, frozen: bool, chosen: bool, since: int) -> None:
        pass


class Way:
    """The channel from one node to another, which lasts as long as the connection."""

    def __init__(self, network: Network, ends: tuple[int, int]) -> None:
        self.network, self.ends, self.made = network, ends, network.connections(ends)

    def _put_frames(self, head: bytes, buffers: list[Any], timeout: float | None) -> None:
        if self.made != self.network.connections(self.ends):
            raise DestroyedError("the connection broke")
        if self.ends[0] in self.network.full:
            raise MemoryError("there is no memory for that")
        self.network.under_way[self.ends].append((head, buffers))


class Node:
    """The replication of a node, with the state that its agent keeps for it."""

    def __init__(self, network: Network, index: int, replicas: int) -> None:
        self.network, self.index, self.replicas = network, index, replicas
        self.work: deque[Callable[[], object]] = deque()
        self.told: deque[Callable[[], None]] = deque()  # by the front end, and not heard yet
        self.peers: Any = SimpleNamespace(index=index, lost={}, unreachable={}, active=self.active, ask=self.ask)
        self.peers.propose = lambda proposal: network.propose(index, proposal)
        self.shard: Entries | None = None
        self.known: Holding | None = None
        self.given_by: tuple[int, Tag] | None = None
        if index < replicas:
            self.shard, self.known = Entries(replicas), Holding(0, list(range(replicas)))
        self.replication = Replication(self.peers, self, (1, 1, index << 8), self.way_to, self.work.append)

    # what an agent knows

    def holding(self, whose: Whose) -> Holding:
        if self.known is None or self.index not in self.known.holders:
            raise LookupError("there is no copy here")
        return self.known

    def hold_since(self, whose: Whose, holding: Holding) -> None:
        self.known, self.given_by = holding, None

    def teacher(self, whose: Whose) -> tuple[int, Tag] | None:
        return self.given_by

    def copy_of(self, whose: Whose) -> Any:
        return next((shard for _, shard in self.held()), None)

    def held(self) -> Iterator[tuple[Whose, Any]]:
        if self.known is not None and self.index in self.known.holders:
            yield WHOSE, self.shard

    # what others do for it

    def active(self) -> list[int]:
        return [node for node in range(len(self.network.nodes)) if node not in self.peers.lost]

    async def ask(self, node: int, request: CreateShard | ShardChannel) -> Any:
        await asyncio.sleep(0)
        there = self.network.nodes[node]
        if node in self.peers.lost or self.index in there.peers.lost or self.network.is_parted(self.index, node):
            self.peers.unreachable[node] = "there is no way"
            raise NodeLostError("there is no way")
        self.peers.unreachable.pop(node, None)
        if isinstance(request, CreateShard):
            assert request.teacher is not None
            there.shard, there.known = Entries(there.replicas), None
            there.given_by = request.teacher[0], Tag(*request.teacher[1:])
        return 1, 1, node << 8

    def way_to(self, pid: int, name: Any) -> Any:
        return Way(self.network, (self.index, name[2] >> 8))

    # what comes

    def take(self, sender: int, head: bytes, buffers: list[Any]) -> None:
        if sender in self.peers.lost:
            return
        request = _decode(head)
        if isinstance(request, Reply):
            self.replication.acknowledged(request)
            return

        def reply(result: Result, error: Any) -> None:
            if not self.network.is_parted(self.index, sender):
                answer = _encode(Reply(request.number, result.value, error))
                self.network.under_way[self.index, sender].append((answer, []))

        shard: Any = self.shard
        try:
            self.replication.do(shard, sender, request, buffers, reply)
        except Exception as error:
            reply(Result(), error_of(error))

    def decided(self, holding: Holding) -> None:
        self.work.append(partial(self.replication.decided, WHOSE, holding))

    def lose(self, node: int, epoch: int) -> None:
        self.peers.lost[node] = "it is silent"
        self.network.under_way[node, self.index].clear()
        self.work.append(partial(self.replication.node_lost, node, epoch))


class Network:
    """All nodes, the messages in flight between them, and the front end."""

    def __init__(self, nodes: int, replicas: int) -> None:
        self.under_way: dict[tuple[int, int], deque[tuple[bytes, list[Any]]]] = {
            (one, other): deque() for one in range(nodes) for other in range(nodes)
        }
        self.broken: dict[frozenset[int], int] = {}
        self.parted: set[frozenset[int]] = set()
        self.full: set[int] = set()  # nodes that have no memory for messages to others
        self.nodes: list[Node] = []
        self.decisions, self.alive = Decisions(), set(range(nodes))
        self.replicas = replicas
        self.holders = list(range(replicas))  # as the front end has decided
        self.nodes += [Node(self, index, replicas) for index in range(nodes)]

    def connections(self, ends: tuple[int, int]) -> int:
        return self.broken.get(frozenset(ends), 0)

    def is_parted(self, one: int, other: int) -> bool:
        return frozenset((one, other)) in self.parted

    def break_link(self, one: int, other: int) -> None:
        self.broken[frozenset((one, other))] = self.connections((one, other)) + 1
        for near, far in ((one, other), (other, one)):
            self.under_way[near, far].clear()
            self.nodes[near].work.append(partial(self.nodes[near].replication.link_broken, far))

    def propose(self, index: int, asked: Proposal) -> None:
        if index not in self.alive:
            return
        epoch = self.decisions.decide(asked, self.alive)
        if epoch is None:
            return
        self.holders = asked.holders
        for node in {*asked.before, *asked.holders} & self.alive:
            there = self.nodes[node]
            there.told.append(partial(there.decided, Holding(epoch, asked.holders)))

    def lose(self, index: int) -> None:
        """Declare a node lost; it is not notified and continues."""
        self.alive.discard(index)
        self.holders = [node for node in self.holders if node != index]
        epoch = self.decisions.lose()
        for node in self.alive:
            there = self.nodes[node]
            there.told.append(partial(there.lose, index, epoch))

    def step(self, chance: random.Random) -> None:
        """Deliver one message or decision, or do one item of a node's work, chosen at random."""
        frames = [ends for ends, frames in self.under_way.items() if frames and not self.is_parted(*ends)]
        told = [node for node in self.nodes if node.told and node.index in self.alive]
        work = [node for node in self.nodes if node.work]
        choice = chance.choice([*frames, *((node, True) for node in told), *((node, False) for node in work), None])
        if choice is None:
            return
        if isinstance(choice[0], Node):
            (choice[0].told if choice[1] else choice[0].work).popleft()()
        else:
            sender, receiver = choice
            head, buffers = self.under_way[sender, receiver].popleft()
            there = self.nodes[receiver]
            there.work.append(lambda: there.take(sender, head, buffers))


class Client:
    """A client that adds, one operation at a time, and reads; it repeats an unanswered request, at any node."""

    def __init__(self, network: Network, number: int) -> None:
        self.network, self.name, self.key = network, bytes([number]) * 8, f"key {number}".encode()
        self.asked = self.answered = 0
        self.befores: list[int] = []
        self.late: list[tuple[Node, Callable[[], None]]] = []
        self.chance = random.Random(number)
        self.reads = 0

    def add(self, node: Node) -> None:
        """Begin an addition, or repeat the request that was not answered."""
        if self.asked == self.answered:
            self.asked += 1
        number = self.asked

        def reply(result: Result, error: Any) -> None:
            if error is None and self.answered < number:
                self.answered = number
                self.befores.append(result.value)

        self._ask(node, (self.name, number, number - 1), "add", [self.key, 1, 0], reply)

    def read(self, node: Node, clients: list[Client]) -> None:
        due = {client.key: client.answered for client in clients}

        def reply(result: Result, error: Any) -> None:
            if error is None:
                self.reads += 1
                shown = dict(result.value)
                assert all(shown.get(key, 0) >= least for key, least in due.items()), (shown, due)

        self._ask(node, None, "sizes", [0], reply)

    def _ask(self, node: Node, identity: Identity | None, operation: str, arguments: list[Any], reply: Any) -> None:
        def ask() -> None:
            shard: Any = node.shard
            try:
                node.replication.ask(shard, Request(0, WORDS, 0, *WHOSE, operation, arguments, identity), [], reply)
            except Exception as error:
                reply(Result(), error_of(error))

        if node.shard is not None:
            node.work.append(ask)
            if self.chance.random() < 0.1:
                self.late.append((node, ask))  # on a connection that seemed to be broken


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def disturb(network: Network, clients: list[Client], chance: random.Random) -> None:
    """Perform one random action of a client, a connection or a node."""
    what, nodes = chance.random(), range(len(network.nodes))
    one, other = chance.sample(nodes, 2)
    if what < 0.05:
        for node, ask in chance.choice(clients).late[-2:]:
            node.work.append(ask)
    elif what < 0.7:
        chance.choice(clients).add(network.nodes[one])
    elif what < 0.93:
        chance.choice(clients).read(network.nodes[one], clients)
    elif what < 0.95:
        network.break_link(one, other)
    elif what < 0.953:
        network.full.add(one)
    elif what < 0.965:
        network.full.clear()
    elif what < 0.97:
        network.parted.add(frozenset((one, other)))
        network.break_link(one, other)
    elif what < 0.99:
        network.parted.clear()
    elif one in network.alive and len(network.alive) > network.replicas and network.holders != [one]:
        network.lose(one)


async def simulate(seed: int, count: int, replicas: int) -> None:
    chance = random.Random(seed)
    network = Network(count, replicas)
    clients = [Client(network, number) for number in range(3)]
    for _ in range(STEPS):
        if chance.random() < 0.2:
            disturb(network, clients, chance)
        network.step(chance)
        if chance.random() < 0.3:
            await settle()
    network.parted.clear()
    network.full.clear()
    for _ in range(STEPS):
        network.step(chance)
        await settle()
        for client in clients:
            if client.asked > client.answered and chance.random() < 0.01:
                client.add(network.nodes[network.holders[0]])
    check(network, clients)


def check(network: Network, clients: list[Client]) -> None:
    decides = network.nodes[network.holders[0]].shard
    assert decides is not None
    for client in clients:
        assert client.answered == client.asked, "an operation was never answered"
        assert client.befores == list(range(client.answered)), "an addition was undone, or done twice"
        assert decides.held.get(client.key, 0) == client.answered
    for holder in network.holders:
        copy = network.nodes[holder].shard
        assert copy is not None
        assert copy.held == decides.held, f"node {holder} holds something else"
    assert sum(client.answered for client in clients) > 10


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the delays of retries to zero."""
    monkeypatch.setattr(replication, "_RECONNECT_S", 0)
    monkeypatch.setattr(replication, "_RECOPY_S", 0)


@pytest.mark.parametrize(("nodes", "replicas"), [(3, 2), (4, 2), (4, 3), (6, 3)])
def test_acknowledged_writes_are_kept_exactly_once(at_once: None, nodes: int, replicas: int) -> None:
    for seed in range(SEEDS):
        try:
            asyncio.run(simulate(seed, nodes, replicas))
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")
