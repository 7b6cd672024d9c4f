"""The guarantees to one process if reads use the copy on their own node: a process reads its own puts, or something
newer, and never an older value than one that it has read already.

A value is older than another one if its put returned before the put of the other began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from jepsen.history import Operation

__all__ = ["going_back"]

_NEVER = -1


def going_back(
    operations: Sequence[Operation], is_counter: bool, own_only: bool = False
) -> Iterator[tuple[Operation, Operation]]:
    """Return reads of one object that are older than what their process knew when they began, each with the operation
    from which the process knew it. `own_only` counts only the process's own puts, not its reads: values that it read
    may be lost with the primary.
    """
    by_process = defaultdict(list)
    for one in operations:
        by_process[one.client.rpartition(".")[0]].append(one)
    ages = _AgesOfCounts() if is_counter else _AgesOfValues(operations)
    for those in by_process.values():
        yield from _of_process(those, ages, own_only)


def _of_process(
    operations: Sequence[Operation], ages: _AgesOfCounts | _AgesOfValues, own_only: bool
) -> Iterator[tuple[Operation, Operation]]:
    learnt = sorted((one for one in operations if one.ended is not None), key=lambda one: one.ended or 0)
    at, newest, source = 0, _NEVER, None
    for read in sorted(_reads(operations), key=lambda one: one.begun):
        while at < len(learnt) and (learnt[at].ended or 0) < read.begun:
            for value in ages.known(learnt[at], own_only):
                if ages.born(value) > newest:
                    newest, source = ages.born(value), learnt[at]
            at += 1
        if source is not None and ages.replaced(read.result) < newest:
            yield source, read


def _reads(operations: Iterable[Operation]) -> list[Operation]:
    return [one for one in operations if one.name == "get" and one.ended is not None]


class _AgesOfCounts:
    """Ages of counter values: counts only grow, so each value is its own age."""

    def known(self, operation: Operation, own_only: bool) -> list[int]:
        if operation.name == "add":
            return [operation.result + operation.given]
        return [] if own_only else [operation.result]

    def born(self, value: int) -> int:
        return value

    def replaced(self, value: int) -> int:
        return value


class _AgesOfValues:
    """Ages of values by their puts: when the put of each value began, and when it returned. A later begin is newer."""

    def __init__(self, operations: Collection[Operation]) -> None:
        self._puts = {one.given: one for one in operations if one.given is not None}
        pops = [one for one in operations if one.name == "pop" and (one.ended is None or one.result is not None)]
        self._last_pop = max((_end(one) for one in pops), default=_NEVER)

    def known(self, operation: Operation, own_only: bool) -> list[Any]:
        is_own = operation.name == "put" or (operation.name == "setdefault" and operation.result == operation.given)
        if is_own:
            return [operation.given]
        known = operation.name in ("get", "setdefault") and not own_only
        return [operation.result] if known and operation.result is not None else []

    def born(self, value: Any) -> int:
        return self._puts[value].begun if value in self._puts else _NEVER

    def replaced(self, value: Any) -> float:
        """Return the latest time at which a value had been replaced."""
        if value is None:
            return self._last_pop
        return _end(self._puts[value]) if value in self._puts else float("inf")


def _end(operation: Operation) -> float:
    return float("inf") if operation.ended is None else operation.ended
