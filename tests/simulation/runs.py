"""One simulated run: what is asked and what fails, drawn from the seed, and what is checked.

Agents ask each other and start groups while nodes die, stop and return, and links break. Checked is that

- a request ends within a bound: with its answer, or with NodeLostError, which needs a reason;
- no request is performed twice, none is answered that was not performed, and none of a lost node is performed;
- a message that is kept (Links.forward) is performed exactly once and in order, unless a node is declared lost;
- the surviving nodes agree which nodes are lost, and on the order and numbers of the decisions;
- groups end, say what failed first, and leave no process; a node that was declared lost ends itself;
- nothing waits any more when all faults are over, and everything ends with the run.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.messages import Spawn
from dragon.infrastructure.start_request import RECORD_WORDS, RUNNING, STATUS
from dragon.launcher.frontend import Options
from dragon.runtime.handle import Words
from dragon.runtime.protocol.groups import CloseGroup, CreateGroup, GroupSettings, StartGroup
from dragon.runtime.protocol.objects import CreateNamedObject
from dragon.runtime.protocol.request import BetweenAgents, Caller, OfAll, decode_answer
from dragon.runtime.protocol.run import StartElsewhere
from dragon.runtime.rpc import serves, serves_for
from simulation.cluster import Node, Simulation
from simulation.loop import Process, waiting
from simulation.network import SILENCE_S, Host

START_S = 30.0  # seconds within which a run starts
WORK_S = 20.0  # in which requests are sent and faults happen
LIMIT_S = 40.0  # within which a request ends, besides the time for which processes are stopped
END_S = 60.0  # within which everything ends after the run


class Perform(BetweenAgents[int]):
    """Perform this once, after so many seconds, and return its number."""

    number: int
    seconds: float


class Remember(BetweenAgents[None]):
    """Perform this once; it is kept until it is performed."""

    number: int
    place: int  # among those that the sender has sent to this node


class Everywhere(OfAll[int]):
    """Return the index of each node."""


@dataclass
class Asked:
    """A request that is answered: its number, between which nodes, and how it ended."""

    number: int
    node: int
    other: int
    begun: float
    seconds: float = 0.0
    ended: float | None = None
    outcome: str = ""
    cancelled: bool = False


@dataclass
class Child:
    """A process that one of another node has started, with the record that its creator has."""

    name: str
    creator: int
    asked: Asked
    record: Words


class Handlers:
    """What the agent of a node does of what is asked in a simulation."""

    def __init__(self, work: Work, node: Node) -> None:
        self._work, self._node = work, node

    def _note(self, caller: Caller, number: int) -> None:
        if caller.node in self._node.cluster.links.lost:
            self._work.simulation.fail(f"node {self._node.index} performs request {number} of a node that is lost")
        self._work.performed[number] += 1

    @serves_for(Perform)
    def _perform(self, caller: Caller, number: int, seconds: float) -> int | asyncio.Future[int]:
        self._note(caller, number)
        return asyncio.ensure_future(asyncio.sleep(seconds, number)) if seconds else number

    @serves_for(Remember)
    def _remember(self, caller: Caller, number: int, place: int) -> None:
        self._note(caller, number)
        last = self._work.places.get((caller.node, self._node.index), 0)
        if place <= last:
            self._work.simulation.fail(f"node {self._node.index} performs message {place} after message {last}")
        self._work.places[caller.node, self._node.index] = place

    @serves(Everywhere)
    def _everywhere(self) -> list[int]:
        return [self._node.index]


class Work:
    """What the nodes ask of each other."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.performed: Counter[int] = Counter()
        self.places: dict[tuple[int, int], int] = {}  # by sender and receiver: the message that was performed last
        self.sent: Counter[tuple[int, int]] = Counter()
        self.asked: list[Asked] = []
        self.forwarded: list[tuple[int, int, int]] = []  # number, sender, receiver
        self.children: list[Child] = []
        self.named: Counter[int] = Counter()  # numbers of objects that the first node has given

    async def ask_at_random(self, node: Node) -> None:
        """Ask others for a while, as the agent of a node."""
        random = self.simulation.random
        pause = random.choice((0.05, 0.5, 2.0))
        until = self.simulation.loop.time() + WORK_S
        ask = (self._ask, self._ask, self._cancel, self._ask_all, self._name)
        kinds = (*ask, self._forward, self._forward, self._group, self._start_process)
        while self.simulation.loop.time() < until and len(self.asked) < 60:
            await asyncio.sleep(random.uniform(0, pause))
            others = [other for other in node.cluster.links.members if other != node.index]
            random.choice(kinds)(node, random.choice(others))

    def _number(self) -> int:
        return next(self.simulation.numbers)

    def _ask(self, node: Node, other: int) -> Asked:
        seconds = self.simulation.random.choice((0.0, 0.0, 0.0, 1.5))
        asked = Asked(self._number(), node.index, other, self.simulation.loop.time(), seconds)
        self.asked.append(asked)
        future = node.cluster.links.call(other, Perform(asked.number, asked.seconds))
        future.add_done_callback(partial(self._ended, asked))
        return asked

    def _cancel(self, node: Node, other: int) -> None:
        asked = Asked(self._number(), node.index, other, self.simulation.loop.time(), 5.0)
        self.asked.append(asked)
        future = node.cluster.links.call(other, Perform(asked.number, asked.seconds))
        future.add_done_callback(partial(self._ended, asked))
        self.simulation.loop.call_later(self.simulation.random.uniform(0, 2), future.cancel)

    def _forward(self, node: Node, other: int) -> None:
        links = node.cluster.links
        for _ in range(self.simulation.random.choice((1, 1, 5))):
            if other not in links.lost:
                number = self._number()
                self.sent[node.index, other] += 1
                self.forwarded.append((number, node.index, other))
                links.forward(other, Remember(number, self.sent[node.index, other]))

    def _ask_all(self, node: Node, other: int) -> None:
        asked = Asked(0, node.index, other, self.simulation.loop.time())
        self.asked.append(asked)
        future: Any = node.cluster.do(Everywhere(), Caller(node.index))
        future.add_done_callback(partial(self._ended, asked))

    def _name(self, node: Node, other: int) -> None:
        """Have the first node register an object, as a process of this node does."""
        request = CreateNamedObject("thing", "", node.index, b"", [])
        answer = node.cluster.do(request, Caller(node.index))
        if not isinstance(answer, asyncio.Future):
            self.named[answer.number] += 1  # type: ignore[attr-defined]
            return
        asked = Asked(0, node.index, 0, self.simulation.loop.time())
        self.asked.append(asked)
        answer.add_done_callback(partial(self._ended, asked))
        answer.add_done_callback(lambda done: done.exception() or self._named(request, done.result()))

    def _named(self, request: CreateNamedObject, answer: Any) -> None:
        self.named[decode_answer(request, answer).number] += 1

    def _start_process(self, node: Node, other: int) -> None:
        """Have a process of this node start one on another node."""
        creators = [spawn.puid for spawn in node.zygote.living.values()]
        if not creators:
            return
        random, record = self.simulation.random, Words(RECORD_WORDS)
        asked = Asked(0, node.index, other, self.simulation.loop.time())
        child = Child(f"child-{self._number()}", random.choice(creators), asked, record)
        record[STATUS] = RUNNING
        spawn = Spawn(
            name=child.name,
            executable="sleep",
            arguments=[str(random.choice((random.uniform(0, 6), 1000))), "0", ""],
            parent=child.creator,
            node=other,
            record=record._name(),
        )
        self.asked.append(asked)
        self.children.append(child)
        answer: Any = node.cluster.do(StartElsewhere(spawn), Caller(node.index))
        answer.add_done_callback(partial(self._ended, asked))

    def _group(self, node: Node, other: int) -> None:
        node.process.main.task(self._run_group(node))

    async def _run_group(self, node: Node) -> None:
        random, cluster = self.simulation.random, node.cluster
        templates = [
            Spawn(
                executable=random.choice(["sleep"] * 40 + ["missing"]),
                arguments=[str(random.choice((random.uniform(0, 6), 1000))), str(code), kind],
            )
            for code in (0, 3 * (random.random() < 0.3))
            for kind in ("", "stubborn")
        ]
        places = [(1, which, random.choice(cluster.links.active()), [], {}) for which in range(len(templates))]
        settings = GroupSettings(
            name="", restart=random.random() < 0.2, ignore_error_on_exit=random.random() < 0.3, walltime=8.0
        )
        asked = Asked(0, node.index, node.index, self.simulation.loop.time())
        self.asked.append(asked)
        made: Any = cluster.do(CreateGroup(settings, templates, places), Caller(node.index))
        starting: Any = cluster.do(StartGroup(made.number), Caller(node.index))
        starting.add_done_callback(partial(self._ended, asked))
        if random.random() < 0.2:
            await asyncio.sleep(random.uniform(0, 3))
            cluster.do(CloseGroup(made.number), Caller(node.index))

    def _ended(self, asked: Asked, future: asyncio.Future[Any]) -> None:
        asked.ended, asked.cancelled = self.simulation.loop.time(), future.cancelled()
        error = None if asked.cancelled else future.exception()
        asked.outcome = "answer" if error is None else type(error).__name__
        if error is not None and not isinstance(error, NodeLostError) and "as its run ends" not in str(error):
            self.simulation.fail(f"request {asked.number} of node {asked.node} to {asked.other} failed: {error!r}")
        elif error is not None:
            self.simulation.note(f"request {asked.number} of node {asked.node} to {asked.other} failed: {error}")


class Faults:
    """What fails. `severe` is whether a request may fail because of that, or a node be lost."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.random = simulation, simulation.random
        self.severe = simulation.network.latency > 0.01  # connections may not be made in time
        self.kills = False  # whether processes of the program are killed
        self.stopped = 0.0  # seconds for which processes are stopped
        self.ending: list[Callable[[], None]] = []  # ends each fault that lasts
        self.kinds: list[Callable[[], None]] = self.random.choice(
            [
                [],
                [self.reset],
                [self.reset],
                [self.cut_link],
                [self.kill, self.reset],
                [self.pause, self.pause_front_end, self.reset],
                [self.freeze, self.cut_link, self.slow],
                [self.kill_process, self.kill_zygote, self.reset],
                [
                    self.kill,
                    self.power_off,
                    self.freeze,
                    self.pause,
                    self.cut_link,
                    self.cut_off,
                    self.reset,
                    self.slow,
                ],
            ]
        )

    async def happen(self) -> None:
        """Let faults happen for a while, then end those that last."""
        until = self.simulation.loop.time() + WORK_S
        for _ in range(self.random.randint(1, 6) if self.kinds else 0):
            await asyncio.sleep(self.random.uniform(0, WORK_S / 4))
            for _ in range(self.random.choice((1, 1, 1, 2))):  # two at once
                self.random.choice(self.kinds)()
        await asyncio.sleep(max(0.0, until - self.simulation.loop.time()))
        for end in self.ending:
            end()

    def _node(self) -> Node:
        return self.random.choice(self.simulation.nodes)

    def _hosts(self) -> tuple[Host, Host]:
        network = self.simulation.network
        one, other = self.random.sample(list(network.hosts.values()), 2)
        return one, other

    def _for_a_while(self, seconds: float, end: Callable[[], None]) -> None:
        def once() -> None:
            if once in self.ending:
                self.ending.remove(once)
                end()

        self.ending.append(once)
        self.simulation.loop.call_later(seconds, once)

    def kill(self) -> None:
        node = self._node()
        if node.lives:
            self.severe = True
            self.simulation.note(f"the agent of {node.process.name} is killed")
            node.kill()

    def kill_process(self) -> None:
        """Kill a process of the program, maybe its head."""
        zygote = self._node().zygote
        if zygote.living:
            self.kills = True
            zygote.exit(self.random.choice(list(zygote.living)), -signal.SIGKILL)

    def kill_zygote(self) -> None:
        node = self._node()
        self.severe = True
        self.simulation.note(f"the zygote of {node.process.name} is killed")
        node.zygote.end()

    def power_off(self) -> None:
        node = self._node()
        if node.lives:
            self.severe = True
            self.simulation.note(f"{node.process.name} loses its power")
            self._isolate(node.host)
            node.process.kill()
            node.zygote.end()

    def _isolate(self, host: Host) -> None:
        network = self.simulation.network
        for other in network.hosts.values():
            if other is not host:
                network.cut(host, other)
                network.cut(other, host)

    def _connect(self, host: Host) -> None:
        network = self.simulation.network
        for other in network.hosts.values():
            if other is not host:
                network.mend(host, other)
                network.mend(other, host)

    def cut_off(self) -> None:
        """Cut a node's cable."""
        host, seconds = self._node().host, self.random.uniform(0.2, 12)
        self.severe = True
        self.simulation.note(f"the cable of {host.name} is out for {seconds:.3f} s")
        self._isolate(host)
        self._for_a_while(seconds, partial(self._connect, host))

    def cut_link(self) -> None:
        network, (one, other), seconds = self.simulation.network, self._hosts(), self.random.uniform(0.2, 12)
        both = self.random.random() < 0.5
        self.severe = True
        self.simulation.note(f"{one.name} {'and' if both else 'to'} {other.name} is cut for {seconds:.3f} s")
        for a, b in ((one, other), (other, one))[: 1 + both]:
            network.cut(a, b)
            self._for_a_while(seconds, partial(network.mend, a, b))

    def _stop(self, process: Process, seconds: float) -> None:
        self.severe = True
        self.stopped += seconds
        process.stop()
        self._for_a_while(seconds, process.go_on)

    def pause(self) -> None:
        """Stop an agent, whose kernel goes on answering."""
        node, seconds = self._node(), self.random.uniform(0.1, 8)
        self.simulation.note(f"the agent of {node.process.name} stops for {seconds:.3f} s")
        self._stop(node.process, seconds)

    def pause_front_end(self) -> None:
        seconds = self.random.uniform(0.1, 8)
        self.simulation.note(f"the front end stops for {seconds:.3f} s")
        self._stop(self.simulation.front, seconds)

    def freeze(self) -> None:
        """Stop a whole machine, which may have been declared lost when it goes on."""
        node, seconds = self._node(), self.random.uniform(0.5, 12)
        self.simulation.note(f"{node.process.name} freezes for {seconds:.3f} s")
        self._isolate(node.host)
        self._for_a_while(seconds, partial(self._connect, node.host))
        for process in (node.process, node.zygote.process):
            self._stop(process, seconds)

    def reset(self) -> None:
        """Reset connections between two hosts, or any connections between any two frames for a while."""
        network, (one, other) = self.simulation.network, self._hosts()
        if self.random.random() < 0.5:
            self.simulation.note(f"connections between {one.name} and {other.name} are reset")
            network.break_connections(one, other)
        else:
            seconds, network.resets = self.random.uniform(0.1, 5), self.random.choice((0.005, 0.05))
            self.simulation.note(f"connections are reset at random for {seconds:.3f} s")
            self._for_a_while(seconds, lambda: setattr(network, "resets", 0.0))

    def slow(self) -> None:
        network, (one, other), seconds = self.simulation.network, self._hosts(), self.random.uniform(1, 10)
        path = network.path(one, other)
        self.severe = True
        path.latency = self.random.uniform(0.05, 1.5)
        self.simulation.note(f"{one.name} to {other.name} takes {path.latency:.3f} s for {seconds:.3f} s")
        self._for_a_while(seconds, lambda: setattr(path, "latency", path.usual))


def simulate(seed: int) -> Simulation:
    """Simulate the run of a seed. Its `failures` are what was found."""
    draw = random.Random(seed)
    options = Options(resilient=draw.random() < 0.3, idle=draw.choice((0, 0, 1)))
    simulation = Simulation(seed, draw.choice((3, 3, 3, 4, 5, 8)), options)
    work, faults = Work(simulation), Faults(simulation)
    if simulation.network.latency < 0.01:  # else connections may not be made in time
        simulation.network.resets = draw.choice((0.0, 0.0, 0.02))  # while the run starts
    if draw.random() < 0.3:
        simulation.join_twice(draw.randrange(len(simulation.nodes) - 1))
    how = draw.choice(("the program ends", "the program ends", "SIGTERM", "the front end is killed"))
    early = draw.random() < 0.25  # it ends while nodes work and fail
    simulation.run(
        partial(_run, work=work, faults=faults, how="SIGTERM" if early and "program" in how else how, early=early)
    )
    return simulation


def report(seed: int, simulation: Simulation, last: int = 40) -> list[str]:
    """Return what the simulation of a seed has found, its last events, and how to repeat it; nothing if all is well."""
    if not simulation.failures:
        return []
    return [
        f"seed {seed}: {len(simulation.failures)} found",
        *(f"  {text}" for text in simulation.failures[:10]),
        *(f"    {event}" for event in simulation.trace[len(simulation.trace) - last :]),
        f"  repeat it with: PYTHONPATH=.:tests python -m simulation --seed {seed} --last 200",
    ]


async def start(simulation: Simulation) -> bool:
    """Start the run. Return whether all agents serve."""
    simulation.begin()
    starts = await until(lambda: all(node.agent is not None for node in simulation.nodes), START_S)
    if not starts:
        simulation.fail(f"the run has not started within {START_S:g} s")
    return starts


async def _run(simulation: Simulation, work: Work, faults: Faults, how: str, early: bool) -> None:
    if not await start(simulation):
        return
    for node in simulation.nodes:
        node.cluster._services.table.serve(Handlers(work, node))
        node.process.main.task(work.ask_at_random(node))
    simulation.network.resets = 0.0
    failing = asyncio.ensure_future(faults.happen())
    if early:
        await asyncio.sleep(simulation.random.uniform(0, WORK_S))
    else:
        await failing
        await asyncio.sleep(SILENCE_S[1])  # connections that are silent end
        await until(lambda: not _unfinished(simulation, work), LIMIT_S + faults.stopped)
        _check(simulation, work, faults)
        if simulation.double is not None and simulation.double.code != 1:  # it is refused
            simulation.fail(f"an agent that joins twice ends with {simulation.double.code}")
    await _end(simulation, how, END_S + faults.stopped)
    await failing
    for what, counts in (("request", work.performed), ("object", work.named)):
        for number, count in counts.items():
            if count > 1:
                simulation.fail(f"there are {count} of {what} {number}")


async def until(holds: Callable[[], bool], seconds: float) -> bool:
    """Wait until something holds, at most so many seconds. Return whether it does."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while not holds():
        if loop.time() > until:
            return False
        await asyncio.sleep(0.5)
    return True


def _members(simulation: Simulation) -> list[Node]:
    """Return the nodes that belong to the run: that live and were not declared lost."""
    front_end = simulation.front_end
    assert front_end is not None
    return [node for node in simulation.nodes if node.lives and node.index in front_end.alive]


def _heads(simulation: Simulation) -> list[tuple[Node, int]]:
    """Return the head processes, each with its node."""
    return [(node, pid) for node in _members(simulation) for pid in node.zygote.heads()]


def _is_over(simulation: Simulation) -> bool:
    assert simulation.front_end is not None
    return simulation.front_end.code.done()


def _unfinished(simulation: Simulation, work: Work) -> list[str]:
    """Return what is still to be done before nothing waits."""
    members = {node.index: node for node in _members(simulation)}
    if _is_over(simulation):
        return []
    left = [
        f"request {asked.number} of node {asked.node} to {asked.other} has not ended"
        for asked in work.asked
        if asked.ended is None and asked.node in members
    ]
    for number, sender, receiver in work.forwarded:
        if not work.performed[number] and sender in members and receiver in members:
            left.append(f"message {number} of node {sender} to {receiver} is lost")
    assert simulation.front_end is not None
    heads, expected = [node.index for node, _ in _heads(simulation)], simulation.front_end.head_node
    if heads != [expected]:
        left.append(f"the front end has the head process of {expected}, and there are those of {heads}")
    for child in work.children:
        left += _unfinished_child(child, members)
    for node in simulation.nodes:
        if node.lives and node.index not in members:
            left.append(f"{node.process.name} was declared lost, and has not ended")
        elif node.index in members:
            left += [f"{node.process.name}: {what}" for what in _waits(node, members)]
    return left


def _unfinished_child(child: Child, members: dict[int, Node]) -> list[str]:
    """Return what is wrong with a process that one of another node has started, and with its record."""
    node, other = members.get(child.asked.node), members.get(child.asked.other)
    if node is None:
        return []
    what = f"{child.name} of node {child.asked.node} on node {child.asked.other}"
    runs = other is not None and any(spawn.name == child.name for spawn in other.zygote.living.values())
    if child.asked.outcome != "answer":
        return [f"{what} runs, and its start has failed"] if runs else []
    if runs and all(spawn.puid != child.creator for spawn in node.zygote.living.values()):
        return [f"{what} runs, and its creator has ended"]
    if runs == (child.record[STATUS] == RUNNING):
        return []
    return [f"the record of {what} has {child.record[STATUS]}, and it {'runs' if runs else 'has ended'}"]


def _waits(node: Node, members: dict[int, Node]) -> list[str]:
    """Return what waits in an agent or runs for it."""
    links, services = node.cluster.links, node.cluster._services
    left = [f"node {other} is in doubt" for other in links._doubts]
    left += [f"a connection to node {other} is being made" for other in links._connecting]
    left += [f"the session with node {other} waits" for other, s in links._sessions.items() if not s.is_idle]
    left += [f"frames for node {other} are not acknowledged" for other in members if links.wire.state(other)[2]]
    left += [
        f"the loss of node {other} is not known" for other in set(links.members) - links.lost.keys() - set(members)
    ]
    left += [f"{group.name} has {group.live} live members" for group in services.groups.present.values() if group.live]
    left += [f"{spawn.name} runs" for spawn in node.zygote.living.values() if spawn.group]
    living = {spawn.puid for spawn in node.zygote.living.values()}
    kept = {
        "requested processes": services.registry._asked,
        "requests to the zygote": services.spawner._kept,
        "events for other nodes": services._untold,
        "processes that are followed elsewhere": services.processes.followers.keys() - living,
        "creators of processes elsewhere": services.processes.elsewhere.keys() - living,
    }
    left += [f"{what} are kept: {list(each)}" for what, each in kept.items() if each]
    return left


def _check(simulation: Simulation, work: Work, faults: Faults) -> None:
    """Check what holds when all faults are over."""
    for text in _unfinished(simulation, work):
        simulation.fail(text)
    for asked in work.asked:
        _check_request(simulation, work, faults, asked)
    if not _is_over(simulation):
        _check_losses(simulation, faults)
    _check_groups(simulation, faults)


def _check_request(simulation: Simulation, work: Work, faults: Faults, asked: Asked) -> None:
    name = f"request {asked.number} of node {asked.node} to {asked.other}"
    if asked.ended is not None and asked.ended - asked.begun > LIMIT_S + faults.stopped + asked.seconds:
        simulation.fail(f"{name} took {asked.ended - asked.begun:.1f} s")
    if asked.outcome == "answer" and asked.number and not asked.cancelled and not work.performed[asked.number]:
        simulation.fail(f"{name} was answered and not performed")
    if asked.outcome == NodeLostError.__name__ and not faults.severe:
        simulation.fail(f"{name} failed without a reason")


def _check_losses(simulation: Simulation, faults: Faults) -> None:
    members = _members(simulation)
    if not faults.severe and len(members) < len(simulation.nodes):
        simulation.fail("a node was lost without a reason")
    decisions = {tuple(node.cluster.links.lost_at.items()) for node in members}
    if len(decisions) > 1:
        simulation.fail(f"the nodes do not agree which are lost: {sorted(decisions)}")
    for each in decisions:
        if list(each) != sorted(each, key=lambda decision: decision[1]):
            simulation.fail(f"the decisions are not in order: {each}")


def _check_groups(simulation: Simulation, faults: Faults) -> None:
    """Check that the failure of a group is not the end of a member that the group has ended because of another one."""
    if faults.kills or simulation.front_end is None or simulation.front_end._restarted:
        return  # others kill processes, too
    for node in _members(simulation):
        for group in node.cluster._services.groups.present.values():
            culprit = group._culprit
            killed = culprit is not None and culprit.code in (-signal.SIGTERM, -signal.SIGKILL)
            if killed and "lost" not in group.failure:
                simulation.fail(f"the first cause of {group.name} is not {group.failure!r}")


async def _end(simulation: Simulation, how: str, within: float) -> None:
    """End the run, and check that everything ends within so many seconds."""
    front_end, front = simulation.front_end, simulation.front
    assert front_end is not None
    assert simulation.ended is not None
    simulation.note(f"the run is to end: {how}")
    expected = None
    if how == "the front end is killed":
        front.kill()
        simulation.network.end_process(front)
    elif how == "SIGTERM":
        if not simulation.ended.done():
            front.signal(signal.SIGTERM)
    elif not _is_over(simulation):
        for node, pid in _heads(simulation):
            node.zygote.exit(pid, 5)
        expected = 5
    await until(lambda: front.dead and not any(node.lives for node in simulation.nodes), within)
    if not front.dead:
        simulation.fail("the front end does not end")
    elif expected is not None and simulation.ended.result() != expected:
        simulation.fail(f"the front end ends with code {simulation.ended.result()} in place of {expected}")
    for node in simulation.nodes:
        if node.lives:
            tasks = [task for task in asyncio.all_tasks() if task.get_name() == node.process.name]
            simulation.fail(f"the agent of {node.process.name} does not end: {'; '.join(waiting(tasks))}")
        if node.zygote.living:
            simulation.fail(f"processes are left on {node.process.name}")
