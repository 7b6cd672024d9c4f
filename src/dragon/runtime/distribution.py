"""Distributes processes over nodes."""

from __future__ import annotations

from collections.abc import Sequence

from dragon.infrastructure.node_desc import NodeDescriptor
from dragon.infrastructure.policy import Policy


def choose(
    nodes: Sequence[NodeDescriptor], position: int, distribution: Policy.Distribution, start: int = 0
) -> NodeDescriptor:
    """Return the node of the process at `position`, counted from 0, if `nodes[start]` is the first node.

    Round robin places one process on each node in turn. BLOCK fills a node's CPUs before the next one's; when all are
    full it continues round robin.
    """
    if distribution == Policy.Distribution.BLOCK:
        for step in range(len(nodes)):
            node = nodes[(start + step) % len(nodes)]
            if position < node.num_cpus:
                return node
            position -= node.num_cpus
    return nodes[(start + position) % len(nodes)]
