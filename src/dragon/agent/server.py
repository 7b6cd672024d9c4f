"""The agent of a node while it serves."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dragon import _core
from dragon.agent.clients import Asked, Clients
from dragon.agent.processes.starting import Spawner
from dragon.agent.services import Services
from dragon.agent.telemetry.seen import head_of
from dragon.agent.telemetry.service import Telemetry
from dragon.infrastructure.facts import FIRST_PUID
from dragon.runtime import inspection
from dragon.runtime.folder import hold
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.request import Caller, Request, tag_of
from dragon.runtime.protocol.run import EndRun, LostNode, LostNodes, NodeWaits, ReportYourself, Waited, Waiter, Waits
from dragon.runtime.rpc import serves
from dragon.runtime.run import WRITING, Run
from dragon.web import serving

if TYPE_CHECKING:
    from dragon.agent.cluster import Cluster
    from dragon.agent.early import Early


_LEAST_S = 1.0  # seconds; shorter waits are part of any program's work
_MOST_OBJECTS, _MOST_WAITERS = 50, 8


def waiting(services: Services, zygote: int, asking: Iterable[Asked]) -> list[NodeWaits]:
    """Return what has been waited for here for at least a second, longest first."""
    said, node, me = report(services, zygote, asking), services.run.node, os.getpid()
    puids = {pid: (puid, name) for puid, pid, name, _ in said.processes}
    head = head_of(services.run.folder)
    if head is not None:
        puids[head.pid] = FIRST_PUID, "head"
    names = inspection.Names({pid: name for pid, (_, name) in puids.items()}, said, me)
    noted = [wait for wait in _core.waits() if wait["pid"] != me]
    by_object = defaultdict(list)
    for wait in noted:
        by_object[wait["offset"], wait["kind"], wait["purpose"]].append(wait)

    def waiter(pid: int, seconds: float, at: int = node) -> Waiter:
        puid, name = puids.get(pid, (0, "")) if at == node else (0, "")
        return Waiter(at, pid, puid, name, round(seconds, 1))

    found: dict[tuple[int, str], list[Waiter]] = defaultdict(list)
    for waits in by_object.values():
        longest = max(waits, key=lambda wait: wait["seconds"])
        text = inspection.describe(longest, names, {wait["pid"] for wait in waits})
        found[node, text] += [waiter(wait["pid"], wait["seconds"]) for wait in waits]
    for asked in said.asked:
        found[asked.node, inspection.describe_asked(asked)].append(waiter(int(asked.who), asked.seconds))
    for parked in said.parked:
        found[node, inspection.describe_parked(parked, names)].append(waiter(parked.pid, parked.seconds, parked.node))
    own = [one for waiters in found.values() for one in waiters if one.puid]
    return [
        NodeWaits(
            node,
            services.host_name,
            len({one.pid for one in own}),
            min((one.seconds for one in own), default=0.0),
            _longest(found),
        )
    ]


def _longest(found: dict[tuple[int, str], list[Waiter]]) -> list[Waited]:
    result = []
    for (node, text), waiters in found.items():
        long = sorted((one for one in waiters if one.seconds >= _LEAST_S), key=lambda one: -one.seconds)
        if long:
            result.append(Waited(node, text, len(long), long[:_MOST_WAITERS]))
    return sorted(result, key=lambda waited: -waited.waiters[0].seconds)[:_MOST_OBJECTS]


def report(services: Services, zygote: int, asking: Iterable[Asked]) -> inspection.Report:
    """Return the processes and groups of this node, and the pending work of the agent."""
    now, links, wire = services.loop.time(), services.links, services.wire
    return inspection.Report(
        zygote=zygote,
        processes=[(known.puid, known.pid, known.name, known.record[0]) for known in services.registry.living()],
        groups=[
            inspection.GroupState(group.name, len(group.members), group.live, group.failure, group.words._name()[0])
            for group in services.groups.present.values()
        ],
        starting=services.spawner.unanswered,
        untaken=services.spawner.waiting,
        asked=[
            *(
                inspection.Pending(str(one.pid), now - one.since, tag_of(type(one.request)), node=services.run.node)
                for one in asking
            ),
            *(
                inspection.Pending(str(pid), seconds, f"{what} of an object {_where(node, services)}", node=node)
                for pid, node, what, seconds in (wire.pending() if wire is not None else ())
            ),
        ],
        parked=[
            inspection.Pending(
                f"node {node} process {pid}", seconds, what, offset, node, pid, holder, _core.place_of(offset)
            )
            for node, pid, what, offset, seconds, holder in (wire.parked() if wire is not None else ())
            if node != services.run.node
        ],
        lost=dict(links.lost) if links is not None else {},
        tasks=[_task(task) for task in asyncio.all_tasks(services.loop)],
    )


def _where(node: int, services: Services) -> str:
    if services.links is None or node == services.run.node:
        return "of this node"
    return f"on node {node} ({services.links.host_name(node)})"


def _task(task: asyncio.Task[Any]) -> inspection.Task:
    # The innermost of the coroutines that await each other has the line at which the task waits.
    inner: object = task.get_coro()
    name, where = "", ""
    while (frame := getattr(inner, "cr_frame", None)) is not None:
        name, where = frame.f_code.co_qualname, f"{frame.f_code.co_filename}:{frame.f_lineno}"
        inner = getattr(inner, "cr_await", None)
    return inspection.Task(name, where)


log = runtime_log("agent")

_Answer = TypeVar("_Answer")

_SWEEP_EVERY_S = 10.0  # seconds
_WRITE_NOTICE_S = 1.0


class Agent:
    """The agent of a node. Everything in it runs in one event loop. From its construction on it serves the processes
    that connect to `requests`, and in a run of several nodes the others, in `cluster`. `zygote` is the zygote's
    process id; the run ends once `over` is done."""

    def __init__(
        self,
        run: Run,
        zygote: int,
        requests: socket.socket,
        spawner: Spawner,
        cluster: Cluster | None,
        over: asyncio.Future[None],
    ) -> None:
        self.run = run
        self.zygote = zygote
        self._loop = asyncio.get_running_loop()
        self.services = Services(run, zygote, spawner, cluster.links if cluster is not None else None, over)
        spawner.report_to(self.services.on_event)
        self._held = hold(run.folder)
        self._sweep()
        self.telemetry = Telemetry(self.services)
        table = self.services.table
        table.serve(self, self.telemetry, self.telemetry.history)
        # Executes a request of a process. The result, exception or future is the answer.
        self._do: Callable[[Request[object], Caller], object] = table.do
        self.cluster = cluster
        if cluster is not None:
            cluster.begin(self.services)
            self._do = cluster.do
        self._views = serving.Views(self.ask) if cluster is None and serving.are_wanted() else None
        self._opening = self._loop.create_task(self._views.open()) if self._views is not None else None
        self.clients = Clients(requests, run.node, table, self._do)

    def _sweep(self) -> None:
        """Free the memory of ended processes that the zygote did not start: programs that joined, and users' forks."""
        if _core.reap_dead():
            self.services.look_at_all()
        self._loop.call_later(_SWEEP_EVERY_S, self._sweep)

    @serves(EndRun)
    def end_run(self) -> None:
        self.cluster.end_run() if self.cluster is not None else self.services.end()

    def take_over(self, early: Early) -> None:
        """Handle what came before this agent served."""
        self.services.registry.memory_kills = early.memory_kills
        for process, descriptors in early.trackers:
            self.services.trackers.keep(Caller(self.run.node, process, descriptors), process)
            for each in descriptors:
                os.close(each)
        for data, descriptors in early.events:
            self.services.spawner.take(data, descriptors)
        for connection in early.connections:
            self.clients.take_in(connection)

    # ---- requests

    @serves(LostNodes)
    def _lost_nodes(self) -> list[LostNode]:
        links = self.services.links
        lost = (
            [(links.members[index].node, reason) for index, reason in links.lost.items()] if links is not None else ()
        )
        return [LostNode(node.host_name, node.h_uid, reason) for node, reason in lost]

    @serves(ReportYourself)
    def _report(self) -> inspection.Report:
        return report(self.services, self.zygote, self.clients.pending)

    @serves(Waits)
    def _waits(self) -> list[NodeWaits]:
        return waiting(self.services, self.zygote, self.clients.pending)

    async def ask(self, request: Request[_Answer]) -> _Answer:
        """Execute a request as for a process, and return the answer."""
        answer = self._do(request, Caller(self.run.node, os.getpid()))
        if isinstance(answer, asyncio.Future):
            answer = await answer
        return cast(_Answer, answer)

    # ---- the end

    async def finish(self) -> None:
        self.clients.accept()
        await self.services.trackers.finish()
        await self.telemetry.finish()
        self.services.jobs.close()
        self.services.streams.drain()
        await self._finish_files()

    async def _finish_files(self) -> None:
        """Wait until due checkpoints are written, and notify waiting processes if that takes long."""
        written = self.services.shards.snapshots.finish()
        await asyncio.wait([written], timeout=_WRITE_NOTICE_S)
        if not written.done():
            log.warning("the run ends once checkpoints that are due are written; a signal ends it at once")
            (self.run.folder / WRITING).touch()
            if self.cluster is not None:
                self.cluster.tell_writing()
            self.services.writing = written
        await asyncio.wait([written])
