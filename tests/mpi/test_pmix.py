"""The agent's side of jobs that a PMIx server serves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from dragon.agent.mpi.pmix import Pmix, PmixServer
from dragon.infrastructure.facts import PMIBackend
from dragon.runtime.protocol.agents import JobBegun, JobFailed, Part

PART = Part(
    name="job",
    backend=PMIBackend.PMIX,
    home=0,
    node=0,
    ranks=[0],
    placement=[0],
    hosts={0: "here"},
    applications=[0],
    universe=1,
)


class _SlowServer:
    """A substitute for a PMIx server that is delayed."""

    folder = Path()

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[None]] = []

    def settled(self) -> asyncio.Future[None]:
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]


async def _said_at_the_end(last: list[str]) -> list[Any]:
    """Return the notifications about a rank that has ended, if the server reports these events late."""
    said: list[Any] = []

    async def ask(node: int, request: object) -> None:
        raise AssertionError("nothing is asked")

    server = _SlowServer()
    job = Pmix(PART, ask, lambda node, request: said.append(request), cast(PmixServer, server))
    job.on_event("initialised", [0])
    job.ended(0, 0)
    await asyncio.sleep(0.3)
    for what in last:
        job.on_event(what, [0])
    for future in server.asked:
        future.set_result(None)
    await asyncio.sleep(0)
    return said


def test_a_rank_does_not_fail_if_the_server_reports_its_mpi_finalize_late() -> None:
    assert asyncio.run(_said_at_the_end(["finalised"])) == [JobBegun("job")]


def test_a_rank_that_ends_without_mpi_finalize_fails() -> None:
    assert asyncio.run(_said_at_the_end([])) == [
        JobBegun("job"),
        JobFailed("job", 0, "ended without MPI_Finalize", 1, False),
    ]
