"""The fractions of time that applications are due on each kind of devices, by linear programming."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Claim", "fractions"]

_MISSING = "the order gavel needs scipy if there are several kinds of devices: pip install scipy"
_EFFICIENT = 1e-3  # weight of the mean to that of the smallest: it decides only among equally fair solutions
_NONE = 1e-7  # fractions below are rounding errors of the solver


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """What an application needs and can make of each kind. Applications with equal claims get equal fractions.

    Args:
        size: the number of its devices, all of one kind at a time.
        weight: its relative importance, positive.
        speeds: how fast one device of each kind computes for it; 0 for a kind that it cannot run on.
    """

    size: int
    weight: float
    speeds: tuple[float, ...]


def fractions(claims: Sequence[Claim], devices: Sequence[int]) -> list[tuple[float, ...]]:
    """Return, for each claim, the fraction of time on each kind with which the application that is served worst is
    served as well as possible.

    An application is served by its throughput, relative to what it would have with an equal fraction of every device's
    time, times its devices, divided by its weight (Gavel, OSDI 2020, section 4.1: least attained service). Among
    solutions that are equal in this, the one with the largest mean is taken. The fractions of an application add up to
    at most 1, and those of a kind to at most its devices.

    Args:
        claims: those of all applications.
        devices: the number of devices of each kind.

    Raises ModuleNotFoundError, which says what to install, without scipy.
    """
    solved = _solved(tuple(sorted(Counter(claims).items())), tuple(devices))
    return [solved[claim] for claim in claims]


@lru_cache(maxsize=256)  # only arrivals and departures change the arguments
def _solved(claims: tuple[tuple[Claim, int], ...], devices: tuple[int, ...]) -> dict[Claim, tuple[float, ...]]:
    """Return the fractions by claim, each of which several applications have."""
    try:
        from scipy.optimize import linprog
        from scipy.sparse import coo_array
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(_MISSING, name=error.name) from None
    able = [
        (row, kind, claim.speeds[kind])
        for row, (claim, _) in enumerate(claims)
        for kind, there in enumerate(devices)
        if claim.speeds[kind] > 0 and claim.size <= there
    ]
    served = {row for row, _, _ in able}
    # Columns: a fraction for each item of `able`, then how well the worst is served. Rows: for each claim that it is
    # served no worse than that, and that its time is at most 1; for each kind that its devices suffice.
    worst, rows, kinds = len(able), len(claims), len(devices)
    cells: list[tuple[int, int, float]] = [(row, worst, 1.0) for row in served]
    mean = [0.0] * worst
    applications = sum(number for _, number in claims)
    for column, (row, kind, speed) in enumerate(able):
        claim, number = claims[row]
        equal = sum(each * there for each, there in zip(claim.speeds, devices, strict=True)) / sum(devices)
        gain = speed * claim.size / (claim.weight * equal)
        cells += [(row, column, -gain), (rows + row, column, 1.0), (2 * rows + kind, column, number * claim.size)]
        mean[column] = gain * number / applications
    found = [[0.0] * kinds for _ in claims]
    if able:
        places, columns, values = zip(*cells, strict=True)
        solution = linprog(
            [*(-_EFFICIENT * each for each in mean), -1.0],
            A_ub=coo_array((values, (places, columns)), shape=(2 * rows + kinds, worst + 1)).tocsr(),
            b_ub=[0.0] * rows + [1.0] * rows + list(devices),
            method="highs",
        )
        if solution.x is None:
            raise RuntimeError(f"no fractions of time were found: {solution.message}")
        for (row, kind, _), part in zip(able, solution.x, strict=False):
            found[row][kind] = float(min(1.0, part)) if part > _NONE else 0.0
    return {claim: tuple(found[row]) for row, (claim, _) in enumerate(claims)}
