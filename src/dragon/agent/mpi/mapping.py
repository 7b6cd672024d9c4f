"""The mapping of a job's ranks to nodes, in the format of PMI."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["process_mapping"]


def process_mapping(placement: Sequence[int], longest: int = 1024) -> str:
    """Return the value of PMI_process_mapping for ranks on these nodes, in rank order; "" if it would be too long.

    It is "(vector,(first node, nodes, ranks on each), …)" with nodes numbered in the order of their first ranks. If
    there are more ranks, it is repeated from the beginning (MPICH, "PMI process mapping").
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
    """Return the shortest prefix whose repetition is the whole."""
    for length in range(1, len(runs) // 2 + 1):
        if len(runs) % length == 0 and runs == runs[:length] * (len(runs) // length):
            return runs[:length]
    return runs
