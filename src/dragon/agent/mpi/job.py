"""One MPI job, as the node that follows it knows it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from dragon.infrastructure.facts import PMIBackend
from dragon.runtime.nodes import run_nodes
from dragon.runtime.protocol.jobs import Part, Program

__all__ = ["Job", "follows_another"]

_PEER_GONE = 14  # Open MPI's

Spawn = Callable[[int, list[Program]], Coroutine[Any, Any, None]]


@dataclass(eq=False)
class Job:
    """A job as the node that follows it knows it. `fail` gets a rank, what it did and an exit code."""

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
    # Where the site's launcher starts it: how that has ended, and what it has started for a rank has, before that.
    launched: asyncio.Future[str] | None = None
    relay_lost: Callable[[int], None] | None = None
    gatherings: dict[str, dict[int, tuple[Any, asyncio.Future[dict[int, Any]]]]] = field(default_factory=dict)

    def part(self, home: int, node: int, ranks: Iterable[int], hosts: dict[int, str]) -> Part:
        """What one of its nodes is told."""
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

    def gather(self, key: str, nodes: list[int], node: int, data: Any) -> asyncio.Future[dict[int, Any]]:
        """What all of `nodes` give under a key, once they have."""
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

    def launch_end(self) -> asyncio.Future[str]:
        """How the site's launcher ends, which started it. Each caller has a future of its own, which it may cancel.
        Raises LookupError where none has."""
        if self.launched is None:
            raise LookupError("no launcher has started the job")
        return asyncio.shield(self.launched)

    def lose_relay(self, rank: int) -> None:
        """What the site's launcher had started for a rank has ended before that."""
        if self.relay_lost is not None:
            self.relay_lost(rank)

    def begin(self) -> None:
        """A rank has called MPI_Init."""
        self.begun = True
        self._look_for_missing()

    def lacks(self, rank: int, code: int) -> None:
        """A rank has ended without MPI_Init, with that exit code."""
        self.missing.append((rank, code))
        self._look_for_missing()

    def _look_for_missing(self) -> None:
        if self.missing and self.begun:
            rank, code = self.missing[0]
            # How it ended is told by who saw it, unless that looks like an end in order.
            self.end(rank, "" if code else "ended without MPI_Init, in which others wait for it", code or 1)

    def end(self, rank: int, what: str, code: int, at_once: bool = False) -> None:
        """Have it fail, once; what follows from a failure may be told before it."""
        if not self.failed:
            self.failed = not follows_another(self.backend, code)
            self.fail(rank, what, code, at_once)


def follows_another(backend: str, code: int) -> bool:
    """Whether a rank that ended so did because another one had gone."""
    return backend == PMIBackend.PMIX and code == _PEER_GONE
