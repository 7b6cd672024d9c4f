"""Nodes of the run, by name or host id."""

from __future__ import annotations

from dragon.infrastructure.errors import DragonNodeError
from dragon.infrastructure.node_desc import NodeDescriptor
from dragon.runtime.nodes import query, query_total_cpus, run_nodes

__all__ = ["DragonNodeError", "get_list", "query", "query_all", "query_total_cpus"]


def get_list() -> list[int]:
    """Return the host ids of the run's nodes."""
    return [node.h_uid for node in run_nodes()]


def query_all() -> list[NodeDescriptor]:
    """Return every node of the run."""
    return list(run_nodes())
