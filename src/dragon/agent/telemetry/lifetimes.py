"""The processes of a node from their start to their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragon.agent.telemetry.seen import head_of
from dragon.infrastructure.facts import FIRST_PUID
from dragon.infrastructure.metrics import Lifetime
from dragon.runtime.folder import started_at

if TYPE_CHECKING:
    from dragon.agent.server import Agent

__all__ = ["lifetimes"]


def lifetimes(agent: Agent, since: float) -> list[Lifetime]:
    """Those that live, and those that have ended since that time (seconds since 1970)."""
    node, host = agent.run.node, agent.host_name
    head = head_of(agent.run.folder)
    found = []
    if head is not None:
        found.append(Lifetime(node, host, FIRST_PUID, head.pid, "head", 0, 0, started_at(head)))
    found += [
        Lifetime(node, host, p.puid, p.pid, p.name, p.parent, p.group, p.started, p.ended, p.code)
        for p in agent.registry.all()
        if p.ended is None or p.ended >= since
    ]
    return found
