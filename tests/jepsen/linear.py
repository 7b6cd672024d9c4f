"""Check whether operations on one object can have happened one after the other, each at one moment between its call and
its return: the search of Wing and Gong, with the cache of visited states of Lowe.

An operation of unknown outcome may happen at any time after its call, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate
from typing import Any

from jepsen.history import Operation

__all__ = ["COUNTER", "REGISTER", "Model", "Verdict", "explained", "is_linearizable"]

_STEPS = 2_000_000  # steps after which the search is given up
_LONGEST = 300  # operations that are tried for removal from an explanation


class Verdict(Enum):
    """The result of is_linearizable()."""

    YES = "linearizable"
    NO = "not linearizable"
    OPEN = "not decided: too many operations of unknown outcome"


@dataclass(frozen=True)
class Model:
    """An object: its first state; `step`, which returns whether an operation is possible in a state, and the state
    after it; and `spare`, which returns whether a linearizable history remains so without an operation: one that
    changes nothing, or one whose change no other operation has observed, given the results of the others. `known`
    replaces an operation that overlaps no other by one that implies the same state after it without the state before
    it."""

    first: Any
    step: Callable[[Any, Operation], tuple[bool, Any]]
    spare: Callable[[Operation, set[Any]], bool]
    known: Callable[[Operation], Operation]


def _register(state: Any, operation: Operation) -> tuple[bool, Any]:
    match operation.name:
        case "put":
            return True, operation.given
        case "get":
            seen, after = state, state
        case "pop":
            seen, after = state, None
        case "setdefault":
            seen = after = operation.given if state is None else state
        case other:
            raise ValueError(other)
    return operation.ended is None or operation.result == seen, after


def _spare_in_register(operation: Operation, seen: set[Any]) -> bool:
    """`seen` are the results of the other operations."""
    match operation.name:
        case "get":
            return True
        case "pop":
            return operation.ended is not None and operation.result is None
        case "setdefault" if operation.ended is not None and operation.result != operation.given:
            return True
    return operation.given not in seen


def _known_of_register(operation: Operation) -> Operation:
    if operation.name == "pop":
        return replace(operation, name="get", result=None)
    value = operation.given if operation.name == "put" else operation.result
    return operation if value is None else replace(operation, name="put", given=value, result=None)


def _known_of_counter(operation: Operation) -> Operation:
    value = operation.result + (operation.given or 0)
    return replace(operation, name="add", given=value, result=0)


def _counter(state: int, operation: Operation) -> tuple[bool, int]:
    after = state + operation.given if operation.name == "add" else state
    return operation.ended is None or operation.result == state, after


# put, get, pop and setdefault of values that are put once each; None is no value.
REGISTER = Model(None, _register, _spare_in_register, _known_of_register)
# add, which gives what was there before, and get.
COUNTER = Model(0, _counter, lambda operation, seen: operation.name == "get", _known_of_counter)


def is_linearizable(model: Model, operations: Sequence[Operation], steps: int = _STEPS) -> Verdict:
    """Return whether such an order exists."""
    return _search(model, operations, steps)[0]


def _search(model: Model, operations: Sequence[Operation], steps: int) -> tuple[Verdict, int]:
    """Return the verdict, and the latest return up to which an order was found."""
    operations = sorted(_relevant(model, operations), key=lambda operation: operation.begun)
    count, twins = len(operations), _twins(operations)
    following, preceding = _linked(operations)
    due = sum(operation.ended is not None for operation in operations)
    head, state, done, reached = 2 * count, model.first, 0, 0
    been: set[tuple[int, Any]] = set()
    stack: list[tuple[int, Any]] = []
    at = following[head]
    while due:
        steps -= 1
        if steps < 0:
            return Verdict.OPEN, reached
        if at < count:  # a call
            operation, twin = operations[at], twins[at]
            possible, after = model.step(state, operation)
            possible = possible and (twin is None or bool(done >> twin & 1))
            step = done | 1 << at, after
            if not possible or step in been:
                at = following[at]
                continue
            been.add(step)
            stack.append((at, state))
            done, state = step
            due -= operation.ended is not None
            for entry in _entries(operations, at):
                following[preceding[entry]] = following[entry]
                preceding[following[entry]] = preceding[entry]
            at = following[head]
        else:  # the return of an operation that is not in the order yet: an earlier choice was wrong
            reached = max(reached, operations[at - count].ended or 0)
            if not stack:
                return Verdict.NO, reached
            at, state = stack.pop()
            done &= ~(1 << at)
            due += operations[at].ended is not None
            for entry in reversed(_entries(operations, at)):
                following[preceding[entry]] = preceding[following[entry]] = entry
            at = following[at]
    return Verdict.YES, reached


def _entries(operations: Sequence[Operation], at: int) -> list[int]:
    """Return the entries of an operation's call, and of its return if it has one, in the list of _linked()."""
    return [at] if operations[at].ended is None else [at, at + len(operations)]


def _linked(operations: Sequence[Operation]) -> tuple[list[int], list[int]]:
    """Return all calls (an operation's index) and returns (the index plus the number of operations) in the order of
    time, as a doubly linked list: the successor and the predecessor of each entry. One further entry is its head and
    its end."""
    count = len(operations)
    moments = [(operation.begun, 0, index) for index, operation in enumerate(operations)]
    moments += [(one.ended, 1, count + index) for index, one in enumerate(operations) if one.ended is not None]
    order = [entry for _, _, entry in sorted(moments)]
    following, preceding = [0] * (2 * count + 1), [0] * (2 * count + 1)
    for one, other in zip([2 * count, *order], [*order, 2 * count], strict=True):
        following[one], preceding[other] = other, one
    return following, preceding


def _twins(operations: Sequence[Operation]) -> list[int | None]:
    """Return, for each operation of unknown outcome, the previous identical one: trying that one first loses
    nothing.
    """
    last: dict[tuple[str, Any], int] = {}
    twins: list[int | None] = []
    for index, operation in enumerate(operations):
        if operation.ended is not None:
            twins.append(None)
            continue
        kind = operation.name, operation.given
        twins.append(last.get(kind))
        last[kind] = index
    return twins


def _relevant(model: Model, operations: Sequence[Operation]) -> list[Operation]:
    """Leave out operations of unknown outcome whose effect no other operation could have observed."""
    seen = {operation.result for operation in operations if operation.ended is not None}
    return [one for one in operations if one.ended is not None or not model.spare(one, seen)]


def explained(model: Model, operations: Sequence[Operation]) -> list[Operation]:
    """Reduce a non-linearizable history to a few operations that explain why."""
    _, reached = _search(model, operations, _STEPS)
    left = _relevant(model, [operation for operation in operations if operation.begun <= reached])
    known, left = _begun_late(model, left)
    left = _shortened(model, known, left)
    seen = {one.result for one in left if one.result is not None}
    before = [one for one in operations if known and one.ended is not None and one.ended < known[0].begun]
    sources = (
        [one for one in before if one.name != "get" and {one.given, one.result} & seen] if model is REGISTER else []
    )
    return sorted([*sources, *known, *left], key=lambda one: one.begun)


def _shortened(model: Model, known: list[Operation], left: list[Operation]) -> list[Operation]:
    """Leave out operations without which the history is still not linearizable."""
    size, tries = max(len(left) // 2, 1), _LONGEST
    while tries > 0:
        smaller = left
        for start in range(0, len(left), size):
            tries -= 1
            without = _without(model, smaller, left[start : start + size])
            if len(without) < len(smaller) and is_linearizable(model, [*known, *without]) is Verdict.NO:
                smaller = without
        if size == 1 and len(smaller) == len(left):
            break
        left, size = smaller, max(size // 2, 1)
    return left


def _begun_late(model: Model, operations: list[Operation]) -> tuple[list[Operation], list[Operation]]:
    """Return the latest operation after which the state is known and that the later operations cannot follow, and these
    later operations; or no operation, and all. Operations of unknown outcome remain: they may happen later."""
    ordered = sorted((one for one in operations if one.ended is not None), key=lambda one: one.begun)
    unknown = [one for one in operations if one.ended is None]
    ends = list(accumulate((one.ended or 0 for one in ordered), max))
    for at in range(len(ordered) - 2, 0, -1):
        if ends[at - 1] < ordered[at].begun and ends[at] < ordered[at + 1].begun:
            known, later = model.known(ordered[at]), [*unknown, *ordered[at + 1 :]]
            if known != ordered[at]:
                known = replace(known, error=f"so it is after that client's {ordered[at].name}")
            if is_linearizable(model, [known, *later]) is Verdict.NO:
                return [known], later
    return [], operations


def _without(model: Model, operations: list[Operation], unwanted: list[Operation]) -> list[Operation]:
    """Leave out those unwanted operations that may be left out."""
    left = list(operations)
    for one in unwanted:
        if one in left:
            others = [other for other in left if other is not one]
            if model.spare(one, {other.result for other in others if other.ended is not None}):
                left = others
    return left
