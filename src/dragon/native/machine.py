"""The nodes of a run, and their CPUs and GPUs."""

from __future__ import annotations

import os

from dragon.infrastructure.policy import Policy
from dragon.runtime import nodes

__all__ = ["Node", "System", "cpu_count", "current"]


def cpu_count() -> int:
    """Return the number of CPUs that the run may use on all nodes together."""
    return nodes.query_total_cpus()


class Node:
    """A node of the run, by its host name or host id. Raises DragonNodeError for a node that the run does not have.

    Examples:
        >>> from dragon.native.machine import Node, System
        >>> nodes = [Node(ident) for ident in System().nodes]
        >>> all(node.num_cpus == len(node.cpus) for node in nodes)
        True
    """

    def __init__(self, ident: str | int) -> None:
        self._node = nodes.query(ident)

    def __repr__(self) -> str:
        return f"Node({self.hostname!r}, {self.num_cpus} CPUs, {self.num_gpus} GPUs)"

    @property
    def name(self) -> str:
        """The host's name."""
        return self._node.host_name

    hostname = name
    """The host's name."""

    @property
    def h_uid(self) -> int:
        """The host's id."""
        return self._node.h_uid

    @property
    def ip(self) -> list[str]:
        """The host's IP addresses."""
        return self._node.ip_addrs

    @property
    def num_cpus(self) -> int:
        """The number of CPUs that the run may use."""
        return self._node.num_cpus

    @property
    def cpus(self) -> list[int]:
        """The numbers of the CPUs that the run may use."""
        return self._node.cpus

    @property
    def num_gpus(self) -> int:
        """The number of GPUs that the run may use."""
        return self._node.num_gpus

    @property
    def gpus(self) -> list[int | float] | None:
        """The numbers of the GPUs that the run may use, tiles as fractions; None on a node without GPUs."""
        return self._node.gpus or None

    @property
    def gpu_vendor(self) -> str | None:
        """The vendor of the GPUs: "nvidia", "amd" or "intel"; None on a node without GPUs."""
        return self._node.gpu_vendor or None

    @property
    def gpu_env_str(self) -> str:
        """The environment variable that selects the GPUs of a process."""
        return self._node.gpu_env_str

    @property
    def physical_mem(self) -> int:
        """The node's memory in bytes."""
        return self._node.physical_mem

    @property
    def is_primary(self) -> bool:
        """Whether the head process runs on this node."""
        return self._node.is_primary


class System:
    """All nodes of the run, as they were when the object was made.

    Examples:
        >>> from dragon.native.machine import System
        >>> system = System()
        >>> len(system.nodes) == system.nnodes == len(system.hostname_policies())
        True
    """

    def __init__(self) -> None:
        self._nodes = list(nodes.run_nodes())

    @property
    def nodes(self) -> list[int]:
        """The nodes' host ids."""
        return [node.h_uid for node in self._nodes]

    @property
    def nnodes(self) -> int:
        """The number of nodes."""
        return len(self._nodes)

    @property
    def primary_node(self) -> Node:
        """The node on which the head process runs."""
        return Node(next((node for node in self._nodes if node.is_primary), self._nodes[0]).h_uid)

    @property
    def restarted(self) -> bool:
        """Whether the program was restarted after a failure."""
        return os.environ.get("DRAGON_RESILIENT_RESTART", "") not in ("", "0")

    def hostname_policies(self) -> list[Policy]:
        """Return one policy for each node, which places a process there."""
        return [Policy(placement=Policy.Placement.HOST_NAME, host_name=node.host_name) for node in self._nodes]

    def gpu_policies(self) -> list[Policy]:
        """Return one policy for each GPU; an empty list on a machine without GPUs."""
        return [
            Policy(placement=Policy.Placement.HOST_NAME, host_name=node.host_name, gpu_affinity=[gpu])
            for node in self._nodes
            for gpu in node.gpus
        ]

    @staticmethod
    def cpu_count() -> int:
        """Return the number of CPUs that the run may use on all nodes together."""
        return cpu_count()


def current() -> Node:
    """Return the node of the calling process."""
    return Node(nodes.own_node().h_uid)
