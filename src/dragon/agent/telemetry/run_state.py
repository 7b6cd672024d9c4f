"""The state of a run, as views of it show it."""

from __future__ import annotations

from dragon.agent.services import Services
from dragon.infrastructure.metrics import RunState
from dragon.runtime.folder import RunInfo, run_name

__all__ = ["run_state"]


def run_state(services: Services, level: int, period: float) -> RunState:
    """Return the state of the run, whose agent measures at `level` every `period` seconds."""
    info, peers = RunInfo.read(services.run.folder), services.peers
    return RunState(
        name=run_name(services.run.folder, info),
        command=info.command,
        started=info.started,
        hosts=[peers.host(node) for node in range(len(peers.members))] if peers else [services.host_name],
        lost=dict(peers.lost) if peers else {},
        level=level,
        period=period,
    )
