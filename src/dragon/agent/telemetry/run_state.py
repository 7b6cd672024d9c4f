"""What a run is, for whoever looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragon.infrastructure.metrics import RunState
from dragon.runtime.folder import RunInfo, run_name

if TYPE_CHECKING:
    from dragon.agent.server import Agent

__all__ = ["run_state"]


def run_state(agent: Agent, level: int, period: float) -> RunState:
    """The run of an agent that measures at that level."""
    info, cluster = RunInfo.read(agent.run.folder), agent.cluster
    return RunState(
        name=run_name(agent.run.folder, info),
        command=info.command,
        started=info.started,
        hosts=[cluster.host(node) for node in range(len(cluster.members))] if cluster else [agent.host_name],
        lost=dict(cluster.lost) if cluster else {},
        level=level,
        period=period,
    )
