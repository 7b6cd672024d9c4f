"""The allocation policies by name."""

from __future__ import annotations

from torchloader.allocation.legal import WithinBudget
from torchloader.allocation.objectives import BUSY, COMPLETION, PROPORTIONAL, TOTAL
from torchloader.allocation.plain import Even, Fifo, PerDevice, Static
from torchloader.allocation.policies import Best, MaxMin
from torchloader.allocation.problem import Policy
from torchloader.allocation.published import Fill, Trim
from torchloader.allocation.synergy import Synergy

__all__ = ["POLICIES", "policy"]

_ALL: list[Policy] = [
    Best("proportional", PROPORTIONAL),
    Best("total", TOTAL),
    Best("busy", BUSY),
    MaxMin(),
    Best("jct", COMPLETION),
    WithinBudget(Fill()),
    WithinBudget(Trim()),
    Even(),
    PerDevice(),
    Synergy(),
    WithinBudget(Static()),
    Fifo(),
]
POLICIES: dict[str, Policy] = {each.name: each for each in _ALL}
"""All policies by name, each corrected to stay within the cores of every node."""


def policy(name: str) -> Policy:
    """Return the policy of that name. Raises ValueError, with the existing names, for an unknown one."""
    if name not in POLICIES:
        raise ValueError(f"there is no policy {name!r}; the policies are {', '.join(POLICIES)}")
    return POLICIES[name]
