"""The placement of processes: on which node, on which of its CPUs, with which of its GPUs."""

from __future__ import annotations

import enum
import functools
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from dragon.infrastructure import variables
from dragon.infrastructure.errors import PolicyError
from dragon.infrastructure.plain_number import plain_number

if TYPE_CHECKING:
    from dragon.infrastructure.node_desc import NodeDescriptor

__all__ = ["Policy", "PolicyError"]


class _Context(threading.local):
    def __init__(self) -> None:
        self.stack: list[Policy] = []


context = _Context()
_Choice = TypeVar("_Choice", bound=enum.IntEnum)


@dataclass
class Policy:
    """A request for placement. As a context manager it applies to every process started in its block, and to their
    children.

    A `host_name` or `host_id` without a placement sets the placement. Devices that the node lacks are left out, with a
    warning. Raises PolicyError for an affinity that is not a list or set of numbers, and for an invalid placement,
    distribution or wait mode.

    Attributes:
        placement: which node.
        host_name: the host name, for Placement.HOST_NAME.
        host_id: the host id, for Placement.HOST_ID; -1 for none.
        distribution: how several processes are distributed over the nodes.
        cpu_affinity: the numbers of the CPUs; empty for all.
        gpu_env_str: the environment variable that selects the GPUs; empty for the vendor's.
        gpu_affinity: the numbers of the GPUs, a tile being a fraction (0.1: the second tile of the first); empty for
            all.
        wait_mode: has no effect.
        refcounted: has no effect.
    """

    class Placement(enum.IntEnum):
        """Which node a process runs on.

        Attributes:
            LOCAL: the caller's node.
            ANYWHERE: any node; the distribution decides.
            HOST_NAME: the node named `host_name`.
            HOST_ID: the node with the id `host_id`.
            DEFAULT: not set; a policy of a lower level decides.
        """

        LOCAL = -5
        ANYWHERE = -4
        HOST_NAME = -3
        HOST_ID = -2
        DEFAULT = -1

    class Distribution(enum.IntEnum):
        """How several processes are distributed over several nodes.

        Attributes:
            ROUNDROBIN: one process on each node in turn.
            BLOCK: fill the CPUs of a node before those of the next one.
            DEFAULT: not set; a policy of a lower level decides.
        """

        ROUNDROBIN = 1
        BLOCK = 2
        DEFAULT = 3

    class WaitMode(enum.IntEnum):
        """Options of dragonhpc that have no effect: waiting adapts by itself.

        Attributes:
            IDLE: has no effect.
            SPIN: has no effect.
            DEFAULT: has no effect.
        """

        IDLE = 1
        SPIN = 2
        DEFAULT = 3

    placement: Placement = Placement.DEFAULT
    host_name: str = ""
    host_id: int = -1
    distribution: Distribution = Distribution.DEFAULT
    cpu_affinity: list[int] = field(default_factory=list)
    gpu_env_str: str = ""
    gpu_affinity: list[int] | list[float] = field(default_factory=list)
    wait_mode: WaitMode = WaitMode.DEFAULT
    refcounted: bool = True

    def __post_init__(self) -> None:
        for name in ("cpu_affinity", "gpu_affinity"):
            value = getattr(self, name)
            if type(value) is list and not value:
                setattr(self, name, [])
                continue
            value = plain_number(value)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                value = [value]
            several = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
            numbers = list(map(plain_number, value)) if several else [None]
            if not all(isinstance(number, (int, float)) for number in numbers):
                raise PolicyError(f"{name} must be a list or a set of device numbers, not {value!r}")
            setattr(self, name, sorted(numbers) if isinstance(value, Set) else numbers)
        self.host_id = self.host_id if type(self.host_id) is int else plain_number(self.host_id)
        for name, kind in _CHOICES.items():
            if type(value := getattr(self, name)) is not kind:
                setattr(self, name, _one_of(kind, name, value))
        if self.placement == Policy.Placement.HOST_NAME and not self.host_name:
            raise PolicyError("placement HOST_NAME needs a host_name")
        if self.placement == Policy.Placement.DEFAULT and self.host_name:
            self.placement = Policy.Placement.HOST_NAME
        elif self.placement == Policy.Placement.DEFAULT and self.host_id != -1:
            self.placement = Policy.Placement.HOST_ID

    def __enter__(self) -> Policy:
        context.stack.append(Policy.merge(Policy.thread_policy(), self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        context.stack.pop()

    @classmethod
    def merge(cls, low_policy: Policy | None, high_policy: Policy | None) -> Policy:
        """Return a policy with the fields that `high_policy` sets, and those of `low_policy` for the others."""
        nothing = _nothing()
        low, high = low_policy or cls(), high_policy or nothing
        chosen = {
            f.name: getattr(high, f.name) for f in fields(cls) if getattr(high, f.name) != getattr(nothing, f.name)
        }
        return replace(low, **chosen)

    @classmethod
    def thread_policy(cls) -> Policy:
        """Return the policy of the innermost `with Policy(...)` block of this thread.

        Outside of any block it is the policy under which this process was started, else an empty one.
        """
        if context.stack:
            return context.stack[-1]
        inherited = os.environ.get(variables.POLICY)
        return _from_text(inherited) if inherited else cls()

    @staticmethod
    def is_in_block() -> bool:
        """Return whether thread_policy() may return more than an empty policy."""
        return bool(context.stack) or variables.POLICY in os.environ

    @classmethod
    def global_policy(cls) -> Policy:
        """Return the policy that applies if no other one decides: any node, round robin."""
        return cls(
            placement=cls.Placement.ANYWHERE, distribution=cls.Distribution.ROUNDROBIN, wait_mode=cls.WaitMode.IDLE
        )

    def get_sdict(self) -> dict[str, Any]:
        """Return the policy as a dict of plain values."""
        return {key: int(value) if isinstance(value, enum.IntEnum) else value for key, value in asdict(self).items()}

    @property
    def sdesc(self) -> dict[str, Any]:
        """The policy as a dict of plain values, as get_sdict() returns it."""
        return self.get_sdict()

    @classmethod
    def from_sdict(cls, sdict: dict[str, Any]) -> Policy:
        """Return the policy that get_sdict() described."""
        return cls(**sdict)

    def to_text(self) -> str:
        """Return the policy as one line of text, which a process inherits from the block in which it was started."""
        return json.dumps(self.get_sdict())


_CHOICES: dict[str, type[enum.IntEnum]] = {
    "placement": Policy.Placement,
    "distribution": Policy.Distribution,
    "wait_mode": Policy.WaitMode,
}


def _one_of(kind: type[_Choice], name: str, value: int) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(f"Policy.{kind.__name__}.{choice.name}" for choice in kind)
        raise PolicyError(f"{name} must be one of {choices}, not {value!r}") from None


@functools.cache
def _nothing() -> Policy:
    """Return an empty policy to compare with, which must not be given to callers."""
    return Policy()


@functools.lru_cache(maxsize=1)
def _from_text(text: str) -> Policy:
    return Policy.from_sdict(json.loads(text))


def choose(
    nodes: Sequence[NodeDescriptor], position: int, distribution: Policy.Distribution, start: int = 0
) -> NodeDescriptor:
    """Return the node of the process at `position`, counted from 0, if `nodes[start]` is the first node. Round robin
    places one process on each node in turn. BLOCK fills a node's CPUs before the next one's; when all are full it
    continues round robin."""
    if distribution == Policy.Distribution.BLOCK:
        for step in range(len(nodes)):
            node = nodes[(start + step) % len(nodes)]
            if position < node.num_cpus:
                return node
            position -= node.num_cpus
    return nodes[(start + position) % len(nodes)]
