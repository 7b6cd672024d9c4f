"""Process groups whose members find each other as ranks of torch.distributed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dragon.infrastructure.plain_number import plain_number
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System
from dragon.native.process import MSG_DEVNULL, ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.runtime.placement import Placed

__all__ = ["CollectiveGroup", "RankInfo"]

_LOOPBACK = "127.0.0.1"


class CollectiveGroup(ProcessGroup):
    """Ranks that train together: a process group that is initialised and not started.

    Each rank calls `training_fn(*training_args, **training_kwargs)`, and has in its environment the variables that
    torchrun sets: RANK, LOCAL_RANK, GROUP_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. So
    `torch.distributed.init_process_group(backend)` needs no other arguments. RankInfo() reads the variables.

    Args:
        training_fn, training_args, training_kwargs: the function that each rank calls, and its arguments.
        nprocs: the number of ranks; by default one for each policy.
        hide_stderr: whether the ranks' stderr is dropped.
        port: the port on which rank 0 listens on its node. Two groups at the same time need different ports.
        policies: the placement of the ranks: one policy for all, or a list that is used in turn; by default one for
            each GPU of the run, or, with `nprocs` on a machine without GPUs, round robin over the nodes.

    Raises ValueError if the number of ranks cannot be determined, and the exceptions of ProcessGroup.
    """

    def __init__(
        self,
        training_fn: Callable[..., Any],
        training_args: Sequence[Any] | None = None,
        training_kwargs: Mapping[str, Any] | None = None,
        nprocs: int | None = None,
        hide_stderr: bool = False,
        port: int = 29500,
        policies: Policy | Sequence[Policy] | None = None,
    ) -> None:
        super().__init__()
        port = plain_number(port)
        if not 0 < port < 2**16:
            raise ValueError(f"port={port!r} is not a port number from 1 to 65535")
        self._port = port
        places = _places(nprocs, policies)
        stderr = MSG_DEVNULL if hide_stderr else None
        arguments, named = tuple(training_args or ()), dict(training_kwargs or {})
        for place in places:
            self.add_process(1, ProcessTemplate(training_fn, arguments, named, stderr=stderr, policy=place))
        self.init()

    def _environments(self, placed: list[tuple[int, Placed]]) -> list[dict[str, str]]:
        nodes = [place.node for _, place in placed]
        order = {index: number for number, index in enumerate(dict.fromkeys(node.index for node in nodes))}
        sizes, seen = Counter(node.index for node in nodes), Counter[int]()
        told = []
        for rank, (node, environment) in enumerate(zip(nodes, super()._environments(placed), strict=True)):
            variables = {
                "RANK": rank,
                "LOCAL_RANK": seen[node.index],
                "GROUP_RANK": order[node.index],
                "WORLD_SIZE": len(nodes),
                "LOCAL_WORLD_SIZE": sizes[node.index],
                "MASTER_ADDR": _LOOPBACK if len(order) == 1 else nodes[0].ip_addrs[0],
                "MASTER_PORT": self._port,
            }
            seen[node.index] += 1
            told.append(environment | {name: str(value) for name, value in variables.items()})
        return told


def _places(nprocs: int | None, policies: Policy | Sequence[Policy] | None) -> list[Policy | None]:
    """Return the policy of each rank."""
    nprocs = plain_number(nprocs)
    if not isinstance(nprocs, int | None):
        raise TypeError(f"nprocs must be a whole number, or None, not {nprocs!r}")
    if nprocs is not None and nprocs < 1:
        raise ValueError(f"nprocs must be at least 1, not {nprocs!r}")
    for one in policies if isinstance(policies, (list, tuple)) else [policies]:
        if not isinstance(one, Policy | None):
            raise TypeError(f"policies must be a Policy or a list of policies, not {policies!r}")
    if policies is None:
        policies = System().gpu_policies()
        if not policies and nprocs is not None:
            return [None] * nprocs
    elif isinstance(policies, Policy):
        policies = [policies]
    if not policies:
        raise ValueError("the number of ranks is unknown, as there are no policies and no GPUs: pass nprocs")
    return [policies[rank % len(policies)] for rank in range(nprocs or len(policies))]


class RankInfo:
    """The rank of the calling process in its group, read from its environment.

    Attributes:
        my_rank: the rank within the group.
        my_local_rank: the rank among the ranks of the same node.
        my_node_rank: the number of the node within the group.
        my_local_world_size: the number of ranks on the node.
        world_size: the number of ranks of the group.
        master_addr: the address of rank 0's node.
        master_port: the port on which rank 0 listens.

    Raises RuntimeError in a process that is not a rank.
    """

    def __init__(self) -> None:
        self.my_rank = int(_told("RANK"))
        self.my_local_rank = int(_told("LOCAL_RANK"))
        self.my_node_rank = int(_told("GROUP_RANK"))
        self.my_local_world_size = int(_told("LOCAL_WORLD_SIZE"))
        self.world_size = int(_told("WORLD_SIZE"))
        self.master_addr = _told("MASTER_ADDR")
        self.master_port = int(_told("MASTER_PORT"))


def _told(variable: str) -> str:
    try:
        return os.environ[variable]
    except KeyError:
        raise RuntimeError(f"{variable} is not set: this process is not a rank of a CollectiveGroup") from None
