"""One MPI job, on the node that follows it, and what its nodes exchange."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.facts import PMIBackend
from dragon.runtime.nodes import run_nodes
from dragon.runtime.protocol import agents as requests
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


Ask = Callable[[int, Request[Any]], Coroutine[Any, Any, Any]]
Tell = Callable[[int, requests.OfJob[None]], None]


class Side:
    """One node's side of a job, which knows the ranks that have called MPI_Init and MPI_Finalize. `ask` and `tell` send
    a request to a node."""

    def __init__(self, part: requests.Part, ask: Ask, tell: Tell) -> None:
        self.part, self._ask, self._tell, self.since = part, ask, tell, time.time()
        self.initialised: set[int] = set()
        self.finalised: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- the node that follows the job

    async def exchange(self, key: str, nodes: list[int], data: object) -> dict[int, Any]:
        """Return what each of these nodes gives under that key, by node, once all have. Raises JobOverError."""
        part = self.part
        try:
            exchange = requests.Exchange(part.name, key, nodes, part.node, data)
            given: dict[int, Any] = await self._ask(part.home, exchange)
            return given
        except (LookupError, NodeLostError, RemoteError) as error:
            raise JobOverError(str(error)) from error

    async def ask(self, request: requests.OfJob[Answer] | requests.OfService[Answer]) -> Answer:
        """Ask the node that follows the job, or the one that keeps the names of services."""
        first = min(each.index for each in run_nodes())
        answer: Answer = await self._ask(self.part.home if isinstance(request, requests.OfJob) else first, request)
        return answer

    def tell(self, request: requests.OfJob[None]) -> None:
        """Send a request to the node that follows the job, without waiting for an answer."""
        self._tell(self.part.home, request)

    def fail(self, rank: int, what: str, code: int, at_once: bool = False) -> None:
        """Report that "rank N …" makes the job fail; the others have a moment to end on their own unless `at_once`."""
        self.tell(requests.JobFailed(self.part.name, rank, what, code, at_once))

    # ---- the ranks

    async def prepare(self) -> None:
        """Prepare for ranks that are about to be started."""

    def join(self, rank: int) -> Joining:
        """Return what a rank that is about to be started is given."""
        raise NotImplementedError

    def place_of(self, rank: int) -> dict[str, str]:
        """Return the variables that say which of this node's ranks it is."""
        return {"MPI_LOCALRANKID": str(self.part.ranks.index(rank)), "MPI_LOCALNRANKS": str(len(self.part.ranks))}

    def begin(self, rank: int) -> None:
        """Note that a rank has called MPI_Init, which returns when all have."""
        if not self.initialised:
            self.tell(requests.JobBegun(self.part.name))
        self.initialised.add(rank)

    def ended(self, rank: int, code: int) -> asyncio.Future[None] | None:
        """Handle the end of a rank's process. Returns a future if that is handled later."""
        if rank not in self.initialised:
            self.tell(requests.RankMissing(self.part.name, rank, code))
        elif rank not in self.finalised:
            # How it ended is reported with the end of its process, unless that looks like a success.
            self.fail(rank, "" if code else "ended without MPI_Finalize", code or 1)
        return None

    def close(self) -> bool:
        """Finish: all processes have ended, or could not be started. Return whether all followed MPI's rules."""
        for task in self._tasks:
            task.cancel()
        return self.finalised >= set(self.part.ranks)

    def soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that takes time, unless the job ends before that."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_PEER_GONE = 14  # Open MPI's

Spawn = Callable[[int, list[requests.Program]], Coroutine[Any, Any, None]]


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

    def part(self, home: int, node: int, ranks: Iterable[int], hosts: dict[int, str]) -> requests.Part:
        return requests.Part(
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

    @serves_each(requests.Exchange)
    def _exchange(self, key: str, nodes: list[int], node: int, data: object) -> asyncio.Future[dict[int, Any]]:
        return self.gather(key, nodes, node, data)

    def gather(self, key: str, nodes: list[int], node: int, data: object) -> asyncio.Future[dict[int, Any]]:
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

    @serves_each(requests.LaunchEnd)
    def launch_end(self) -> asyncio.Future[str]:
        """Return a future of how the site's launcher ends. Each caller gets its own, which it may cancel."""
        if self.launched is None:
            raise LookupError("no launcher has started the job")
        return asyncio.shield(self.launched)

    @serves_each(requests.RelayLost)
    def lose_relay(self, rank: int) -> None:
        """Handle that the relay of a rank, which the site's launcher had started, ended before the rank."""
        if self.relay_lost is not None:
            self.relay_lost(rank)

    @serves_each(requests.JobBegun)
    def begin(self) -> None:
        self.begun = True
        self._look_for_missing()

    @serves_each(requests.RankMissing)
    def lacks(self, rank: int, code: int) -> None:
        self.missing.append((rank, code))
        self._look_for_missing()

    def _look_for_missing(self) -> None:
        if self.missing and self.begun:
            rank, code = self.missing[0]
            # How it ended is reported with the end of its process, unless that looks like a success.
            self.end(rank, "" if code else "ended without MPI_Init, in which others wait for it", code or 1, False)

    @serves_each(requests.JobFailed)
    def end(self, rank: int, what: str, code: int, at_once: bool) -> None:
        """Let the job fail, once; consequences of a failure may be reported before it."""
        if not self.failed:
            self.failed = not follows_another(self.backend, code)
            self.fail(rank, what, code, at_once)


def follows_another(backend: str, code: int) -> bool:
    """Return whether this exit code means that the rank ended because another one had ended."""
    return backend == PMIBackend.PMIX and code == _PEER_GONE
