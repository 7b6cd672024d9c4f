"""One MPI job, on the node that follows it, and what its nodes exchange."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.facts import PMIBackend
from dragon.runtime.nodes import run_nodes
from dragon.runtime.protocol.agents import (
    Exchange,
    JobBegun,
    JobFailed,
    LaunchEnd,
    OfJob,
    OfService,
    Part,
    Program,
    RankMissing,
    RelayLost,
)
from dragon.runtime.protocol.request import Request
from dragon.runtime.rpc import RemoteError, serves_each

Answer = TypeVar("Answer")


class JobOverError(Exception):
    """The job ended, or is being ended, while one of its nodes waited for the others."""


class Joining(NamedTuple):
    """What a rank is started with. Who starts it closes the `descriptors`, which are by the variables for them."""

    environment: Mapping[str, str]
    descriptors: Mapping[str, int] = {}
    defaults: Mapping[str, str] = {}  # variables that its template may override


class HomeNode:
    """The connection from a node of a job to the node that follows the job."""

    def __init__(
        self,
        part: Part,
        ask: Callable[[int, Request[Any]], Coroutine[Any, Any, Any]],
        tell: Callable[[int, OfJob[None]], None],
    ) -> None:
        self._part, self._ask, self._tell = part, ask, tell

    async def exchange(self, key: str, nodes: list[int], data: Any) -> dict[int, Any]:
        """Return what each of these nodes gives under that key, by node, once all have. Raises JobOverError."""
        part = self._part
        try:
            given: dict[int, Any] = await self._ask(part.home, Exchange(part.name, key, nodes, part.node, data))
            return given
        except (LookupError, NodeLostError, RemoteError) as error:
            raise JobOverError(str(error)) from error

    async def ask(self, request: OfJob[Answer] | OfService[Answer]) -> Answer:
        """Ask the node that follows the job, or the one that keeps the names of services."""
        first = min(each.index for each in run_nodes())
        answer: Answer = await self._ask(self._part.home if isinstance(request, OfJob) else first, request)
        return answer

    def relay_lost(self, rank: int) -> None:
        """Report that the relay that the site's launcher started for a rank has ended before the rank."""
        self._tell(self._part.home, RelayLost(self._part.name, rank))

    def fail(self, rank: int, what: str, code: int, at_once: bool = False) -> None:
        """Report that "rank N …" makes the job fail; the others have a moment to end on their own unless `at_once`."""
        self._tell(self._part.home, JobFailed(self._part.name, rank, what, code, at_once))

    def begun(self) -> None:
        """Report that a rank has called MPI_Init, which returns when all have."""
        self._tell(self._part.home, JobBegun(self._part.name))

    def missing(self, rank: int, code: int) -> None:
        """Report that a rank has ended without MPI_Init, with that exit code."""
        self._tell(self._part.home, RankMissing(self._part.name, rank, code))


class Serving(Protocol):
    """One node's side of a job."""

    def join(self, rank: int) -> Joining:
        """Return what a rank that is about to be started is given."""

    def ended(self, rank: int, code: int) -> asyncio.Future[None] | None:
        """Note that the process of a rank has ended. Returns a future if that is handled later."""

    def close(self) -> bool:
        """Finish: all processes have ended, or could not be started. Return whether all followed MPI's rules."""


_PEER_GONE = 14  # Open MPI's

Spawn = Callable[[int, list[Program]], Coroutine[Any, Any, None]]


@dataclass(eq=False)
class Job:
    """A job on the node that follows it. `fail` is called with a rank, what it did, an exit code, and `at_once`."""

    placement: list[int]
    applications: list[int]
    fail: Callable[[int, str, int, bool], None]
    spawn: Spawn
    backend: str
    library: str
    values: dict[str, str]
    spawned: bool
    name: str = field(default_factory=lambda: f"dragon-{secrets.token_hex(8)}")
    missing: list[tuple[int, int]] = field(default_factory=list)  # rank and exit code
    begun: bool = False
    failed: bool = False
    # If the site's launcher starts it: how that has ended, and the handler of relays that end early.
    launched: asyncio.Future[str] | None = None
    relay_lost: Callable[[int], None] | None = None
    gatherings: dict[str, dict[int, tuple[Any, asyncio.Future[dict[int, Any]]]]] = field(default_factory=dict)

    def part(self, home: int, node: int, ranks: Iterable[int], hosts: dict[int, str]) -> Part:
        """Return the description of the job for one of its nodes."""
        return Part(
            name=self.name,
            backend=self.backend,
            home=home,
            node=node,
            ranks=list(ranks),
            placement=self.placement,
            hosts=hosts,
            applications=self.applications,
            library=self.library,
            universe=max(len(self.placement), sum(each.num_cpus for each in run_nodes())),
            spawned=self.spawned,
            values=self.values,
        )

    @serves_each(Exchange)
    def _exchange(self, key: str, nodes: list[int], node: int, data: Any) -> asyncio.Future[dict[int, Any]]:
        return self.gather(key, nodes, node, data)

    def gather(self, key: str, nodes: list[int], node: int, data: Any) -> asyncio.Future[dict[int, Any]]:
        """Contribute a node's data under a key."""
        gathering = self.gatherings.setdefault(key, {})
        future: asyncio.Future[dict[int, Any]] = asyncio.get_running_loop().create_future()
        gathering[node] = data, future
        if gathering.keys() >= set(nodes):
            del self.gatherings[key]
            everything = {each: given for each, (given, _) in gathering.items()}
            for _, waiting in gathering.values():
                if not waiting.done():
                    waiting.set_result(everything)
        return future

    @serves_each(LaunchEnd)
    def launch_end(self) -> asyncio.Future[str]:
        """Return a future of how the site's launcher ends. Each caller gets its own, which it may cancel."""
        if self.launched is None:
            raise LookupError("no launcher has started the job")
        return asyncio.shield(self.launched)

    @serves_each(RelayLost)
    def lose_relay(self, rank: int) -> None:
        """Handle that the relay of a rank, which the site's launcher had started, ended before the rank."""
        if self.relay_lost is not None:
            self.relay_lost(rank)

    @serves_each(JobBegun)
    def begin(self) -> None:
        """Note that a rank has called MPI_Init."""
        self.begun = True
        self._look_for_missing()

    @serves_each(RankMissing)
    def lacks(self, rank: int, code: int) -> None:
        """Note that a rank has ended without MPI_Init, with that exit code."""
        self.missing.append((rank, code))
        self._look_for_missing()

    def _look_for_missing(self) -> None:
        if self.missing and self.begun:
            rank, code = self.missing[0]
            # How it ended is reported with the end of its process, unless that looks like a success.
            self.end(rank, "" if code else "ended without MPI_Init, in which others wait for it", code or 1, False)

    @serves_each(JobFailed)
    def end(self, rank: int, what: str, code: int, at_once: bool) -> None:
        """Let the job fail, once; consequences of a failure may be reported before it."""
        if not self.failed:
            self.failed = not follows_another(self.backend, code)
            self.fail(rank, what, code, at_once)


def follows_another(backend: str, code: int) -> bool:
    """Return whether this exit code means that the rank ended because another one had ended."""
    return backend == PMIBackend.PMIX and code == _PEER_GONE
