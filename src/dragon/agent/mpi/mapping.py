"""Which ranks of a job share a node, as PMI's clients read it."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["process_mapping"]


def process_mapping(placement: Sequence[int], longest: int = 1024) -> str:
    """The value of PMI_process_mapping for ranks on these nodes, rank by rank; empty where it would be too long.

    It is "(vector,(first node, nodes, ranks on each), …)" with nodes numbered in the order of their first ranks, and is
    gone through again from its beginning where there are more ranks (MPICH, "PMI process mapping").
    """
    order: dict[int, int] = {}
    for node in placement:
        order.setdefault(node, len(order))
    runs: list[list[int]] = []  # node, ranks
    for node in placement:
        if runs and runs[-1][0] == order[node]:
            runs[-1][1] += 1
        else:
            runs.append([order[node], 1])
    blocks: list[list[int]] = []  # first node, nodes, ranks on each
    for node, ranks in _period(runs):
        if blocks and blocks[-1][0] + blocks[-1][1] == node and blocks[-1][2] == ranks:
            blocks[-1][1] += 1
        else:
            blocks.append([node, 1, ranks])
    text = f"(vector,{','.join('({},{},{})'.format(*block) for block in blocks)})"
    return text if len(text) < longest else ""


def _period(runs: list[list[int]]) -> list[list[int]]:
    """The shortest beginning that, repeated, makes the whole."""
    for length in range(1, len(runs) // 2 + 1):
        if len(runs) % length == 0 and runs == runs[:length] * (len(runs) // length):
            return runs[:length]
    return runs
