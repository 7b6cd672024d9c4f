"""The nodes that run loading workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragon.native.machine import System, current

__all__ = ["nodes_for"]


def nodes_for(workers_on: str | Sequence[str] | None, context: Any) -> list[str | None]:
    """Return the nodes for the workers of a loader by name, None for the trainer's own node.

    Args:
        workers_on: one name or several of nodes of the run; None for only the trainer's node.
        context: the requested start method.

    Raises TypeError if `workers_on` has no names, ValueError for a node that the run does not have, and if a start
    method is given together with `workers_on`.
    """
    if workers_on is None:
        return [None]
    names = [workers_on] if isinstance(workers_on, str) else workers_on
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"workers_on must be the name of a node, or several, not {workers_on!r}")
    if context is not None:
        raise ValueError(
            f"workers_on={workers_on!r} goes without multiprocessing_context: workers of other nodes are new processes"
        )
    known = [policy.host_name for policy in System().hostname_policies()]
    here = current().hostname
    for name in names:
        if name not in known:
            raise ValueError(f"workers_on names node {name!r}; this run has {', '.join(known)} (this is {here})")
    return [None if name == here else name for name in names]
