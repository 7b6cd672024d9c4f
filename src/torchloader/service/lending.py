"""Shares the cores of a node with loaders of programs that torchloader did not start.

The application master of a node is one of the loaders that share it: it wants as many cores as the run may use there,
and gets its fair share. The master lends the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchloader.allocation.budget import Budget
from torchloader.scheduling.application import Node
from torchloader.service.messages import Claim, Granted

_NOTHING = Claim(0, 0)


class Share:
    """A run's share of the cores of a node, in its application master."""

    def __init__(self, node: str) -> None:
        self._claim = _NOTHING
        self._name = node
        self._budget: Budget | None = None
        self._cores = 0

    def claim(self, claim: Claim) -> Granted:
        """Claim cores, in place of those that were claimed before."""
        if self._budget is not None and (claim.of != self._claim.of or not claim.cores):
            self._budget.close()
            self._budget = None
        self._claim = claim
        return self._ask()

    def news(self) -> Granted | None:
        """Renew the claim, if that is due. Returns what is granted now if that has changed, else None."""
        before = self._cores
        if self._budget is None or not self._budget.is_due:
            return None
        return granted if (granted := self._ask()).cores != before else None

    def _ask(self) -> Granted:
        if not self._claim.cores:
            self._cores = 0
        else:
            self._budget = self._budget or Budget(self._claim.of)
            granted = self._budget.ask(self._claim.cores, 1.0, 0.0)
            self._cores = granted if self._budget.is_settled else self._claim.cores
        return Granted(self._name, self._claim, self._cores)


class Lender:
    """What the master knows of the shares of its nodes. Simulated nodes are one machine, and lend nothing."""

    def __init__(self, simulated: bool) -> None:
        self._simulated = simulated
        self._claims: dict[str, Claim] = {}
        self._granted: dict[str, int] = {}

    def claims(self, nodes: Mapping[str, Node], loads: bool) -> Iterator[tuple[str, Claim]]:
        """Yield the claims that nodes do not have yet."""
        if self._simulated:
            return
        for name, node in nodes.items():
            cores = node.cores if loads else 0
            claim = Claim(cores, node.cores)
            if self._claims.get(name, _NOTHING).cores != cores:
                self._claims[name] = claim
                self._granted.pop(name, None)
                yield name, claim

    def granted(self, message: Granted) -> bool:
        """Note what a node was granted. Returns whether that changes what is lent."""
        before = self.lent(message.node)
        if message.claim == self._claims.get(message.node):
            self._granted[message.node] = message.cores
        return self.lent(message.node) != before

    def forget(self, node: str) -> None:
        """Forget what a node has claimed: it is lost, or has a new application master."""
        self._claims.pop(node, None)
        self._granted.pop(node, None)

    def lent(self, node: str) -> int:
        claimed = self._claims.get(node, _NOTHING).cores
        return claimed - self._granted.get(node, claimed)
