"""Determines where policies would place processes, without starting any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dragon.infrastructure.gpus import GPU_VARIABLES
from dragon.infrastructure.node_desc import NodeDescriptor
from dragon.infrastructure.policy import Policy, PolicyError
from dragon.runtime import placement

__all__ = ["PolicyEvaluator", "ResourceLayout"]


@dataclass
class ResourceLayout:
    """The place of one process: a node, and the CPUs and GPUs there that it may use."""

    h_uid: int
    host_name: str
    node_specified: bool = False  # whether the policy names the node
    numa_node: int = 0
    cpu_core: list[int] = field(default_factory=list)
    gpu_core: list[int | float] = field(default_factory=list)  # tiles as fractions
    accelerator_env: str = ""  # the variable that selects GPUs; empty if the node has none


class PolicyEvaluator:
    """Applies policies to nodes of the run, as dragon.globalservices.node.query_all() returns them; by default to all.

    Policies that name no node are distributed round robin, or node by node with Distribution.BLOCK, as members of a
    group.
    """

    def __init__(self, nodes: Sequence[NodeDescriptor] | None = None, default_policy: Policy | None = None) -> None:
        self._nodes = {node.h_uid for node in nodes} if nodes else None
        self._default = default_policy

    def evaluate(self, policies: Sequence[Policy] | None = None) -> list[ResourceLayout]:
        """Return a place for each policy, or for the default policy. Raises PolicyError if a policy cannot be met."""
        wanted = [Policy.merge(self._default, policy) for policy in policies or [Policy()]]
        members = placement.members("", wanted)
        return [self._layout(policy, member) for policy, member in zip(wanted, members, strict=True)]

    def _layout(self, policy: Policy, member: placement.Member) -> ResourceLayout:
        placed = placement.place(policy, member=member)
        node = placed.node
        if self._nodes is not None and node.h_uid not in self._nodes:
            raise PolicyError(f"the policy places a process on {node.host_name}, not a node of the evaluator")
        variables = GPU_VARIABLES.get(node.gpu_vendor, ())
        return ResourceLayout(
            node.h_uid,
            node.host_name,
            placed.named,
            cpu_core=list(placed.cpus or node.cpus),
            gpu_core=[number for number in node.gpus if not policy.gpu_affinity or number in policy.gpu_affinity],
            accelerator_env=policy.gpu_env_str or next(iter(variables), ""),
        )
