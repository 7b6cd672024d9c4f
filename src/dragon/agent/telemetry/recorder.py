"""Hands what a node measures to the thread that writes it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

import dragon
from dragon.agent.services import Services
from dragon.agent.telemetry.lifetimes import lifetimes
from dragon.agent.telemetry.writer import Parcel, Row, Writer
from dragon.infrastructure.metrics import Kind, Lifetime, Tags
from dragon.infrastructure.recordings import RunDescription, folder_name, node_prefix
from dragon.infrastructure.spans import Span
from dragon.runtime.folder import RunInfo, run_name
from dragon.runtime.log import runtime_log

__all__ = ["Recorder", "open_recorder"]

log = runtime_log("telemetry")

_FLUSH_INTERVAL_S = 2.0  # seconds; at most this much is lost if the agent is killed
_MOST_ROWS = 200_000  # rows that may wait to be written
_CLOCK_MARGIN_S = 60.0  # seconds that the clock may be set back without missing the end of a process
_CLOSE_TIMEOUT_S = 10.0


def open_recorder(services: Services, directory: Path) -> Recorder:
    """Start recording what this agent's node measures."""
    info = RunInfo.read(services.run.folder)
    members = services.peers.members if services.peers is not None else []
    description = RunDescription(
        name=run_name(services.run.folder, info),
        command=info.command,
        started=info.started,
        nodes=[member.node.host_name for member in members] or [services.host_name],
        version=dragon.__version__,
    )
    return Recorder(directory, description, services.run.node, partial(lifetimes, services))


class Recorder:
    """Records values and lifetimes of a node in a directory, from now on.

    Args:
        lifetimes: returns the processes that are alive or have ended since a time
    """

    def __init__(
        self,
        directory: Path,
        description: RunDescription,
        node: int,
        lifetimes: Callable[[float], list[Lifetime]],
    ) -> None:
        folder = directory / folder_name(description.started, description.name)
        self._writer = Writer(folder, node_prefix(description.nodes[node], node), None if node else description)
        self._lifetimes = lifetimes
        self._rows: list[Row] = []
        self._spans: list[Span] = []
        self._handed = 0
        self._late = False
        self._looked = 0.0
        self._known: dict[int, float | None] = {}  # when each process ended, as it was recorded
        self._loop = asyncio.get_running_loop()
        # A daemon thread, so that the process can end even if the file system hangs.
        self._thread = threading.Thread(target=self._writer.run, name="recorder", daemon=True)
        self._thread.start()
        self._timer = self._loop.call_later(_FLUSH_INTERVAL_S, self._hand_over)

    def add(self, moment: float, metric: str, tags: Tags, kind: Kind, value: float) -> None:
        """Record a value."""
        if self._handed - self._writer.taken + len(self._rows) < _MOST_ROWS:
            self._rows.append((moment, metric, tags, kind, value))
        elif not self._late:
            self._late = True
            log.warning("telemetry is written too slowly, and some of it is dropped")

    def add_spans(self, spans: list[Span]) -> None:
        """Record spans."""
        if len(self._spans) + len(spans) <= _MOST_ROWS:
            self._spans += spans
        elif not self._late:
            self._late = True
            log.warning("telemetry is written too slowly, and some of it is dropped")

    def _hand_over(self) -> None:
        self._timer = self._loop.call_later(_FLUSH_INTERVAL_S, self._hand_over)
        now = time.time()
        self._put(Parcel(now, self._rows, self._news(now), self._spans))

    def _put(self, parcel: Parcel) -> None:
        self._rows, self._spans = [], []
        self._handed += len(parcel.rows)
        self._writer.parcels.put(parcel)

    def _news(self, now: float) -> list[Lifetime]:
        """Return the processes that have started or ended since the last call."""
        found = self._lifetimes(min(self._looked, now) - _CLOCK_MARGIN_S)
        self._looked = now
        news = [one for one in found if self._known.get(one.puid, 0.0) != one.ended]
        self._known = {one.puid: one.ended for one in found}
        return news

    async def close(self) -> None:
        """Write what is left, and turn the files into those of a run that has ended.

        If the file system hangs, the files stay as they are.
        """
        self._timer.cancel()
        now = time.time()
        self._known = {puid: ended for puid, ended in self._known.items() if ended is not None}
        # Processes that are still alive end with the run; their exit codes are not known.
        ended = [msgspec.structs.replace(one, ended=one.ended or now) for one in self._news(now)]
        self._put(Parcel(now, self._rows, ended, self._spans, last=True))
        await self._loop.run_in_executor(None, self._thread.join, _CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            log.warning("telemetry could not be written within %g s; some of it is missing", _CLOSE_TIMEOUT_S)
