"""Finds which nodes of a cluster are lost."""

from __future__ import annotations

from collections.abc import Iterable

from dragon.native.machine import System

__all__ = ["absent"]


def absent(names: Iterable[str]) -> frozenset[str]:
    """Return those of the nodes that the run has lost."""
    return frozenset(names) - {policy.host_name for policy in System().hostname_policies()}
