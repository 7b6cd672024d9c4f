"""Nodes of the run by name or host id."""

from __future__ import annotations

from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.node_desc import NodeDescriptor
from dragon.runtime.nodes import find_node, own_node, run_nodes

__all__ = ["DragonNodeError", "get_list", "query", "query_all", "query_own", "query_total_cpus"]


class DragonNodeError(DragonError, LookupError):
    """A node that the run does not have."""


def get_list() -> list[int]:
    """The host ids of the run's nodes."""
    return [node.h_uid for node in run_nodes()]


def query(identifier: str | int) -> NodeDescriptor:
    """The node of that host name or host id. Raises DragonNodeError, which names the nodes that exist."""
    found = find_node(identifier) if isinstance(identifier, str) else None
    found = found or next((node for node in run_nodes() if node.h_uid == identifier), None)
    if found is not None:
        return found
    names = ", ".join(node.host_name for node in run_nodes())
    raise DragonNodeError(f"this run has no node {identifier!r}; it has {names}")


def query_own() -> NodeDescriptor:
    """The node that the caller runs on."""
    return own_node()


def query_all() -> list[NodeDescriptor]:
    """Every node of the run."""
    return list(run_nodes())


def query_total_cpus() -> int:
    """CPUs that the run may use, over all nodes."""
    return sum(node.num_cpus for node in run_nodes())
