"""Counts the cores that an allocation may use beside the loading workers of other programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchloader.scheduling.actions import Node

__all__ = ["exceeds", "remaining"]


def remaining(nodes: Mapping[str, Node], least: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the cores for loading of each node, without those lent to other programs.

    Args:
        nodes: the nodes.
        least: for each application, the cores that it must have on each node, whatever is lent.
    """
    needed = dict.fromkeys(nodes, 0)
    for each in least:
        for node, cores in each.items():
            if node in needed:
                needed[node] += cores
    return {name: max(node.cores - node.lent, min(node.cores, needed[name])) for name, node in nodes.items()}


def exceeds(used: Mapping[str, int], cores: Mapping[str, int]) -> bool:
    """Return whether more cores are used on a node than it has."""
    return any(number > cores.get(node, 0) for node, number in used.items())
