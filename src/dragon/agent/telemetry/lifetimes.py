"""The processes of a node from their start to their end."""

from __future__ import annotations

from dragon.agent.services import Services
from dragon.agent.telemetry.seen import head_of
from dragon.infrastructure.facts import FIRST_PUID
from dragon.infrastructure.metrics import Lifetime
from dragon.runtime.folder import started_at


def lifetimes(services: Services, since: float) -> list[Lifetime]:
    """Return the processes that are alive, or have ended since `since` (seconds since 1970)."""
    node, host = services.run.node, services.host_name
    head = head_of(services.run.folder)
    found = []
    if head is not None:
        found.append(Lifetime(node, host, FIRST_PUID, head.pid, "head", 0, 0, started_at(head)))
    found += [
        Lifetime(node, host, p.puid, p.pid, p.name, p.parent, p.group, p.started, p.ended, p.code, p.terminated)
        for p in services.registry.all()
        if p.ended is None or p.ended >= since
    ]
    return found
