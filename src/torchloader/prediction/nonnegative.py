"""Least squares with non-negative coefficients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

__all__ = ["nonnegative"]


def nonnegative(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Return the non-negative coefficients that minimize the sum of squares of `rows @ coefficients - targets`.

    The solution is an ordinary one on a subset of the columns. There are few columns, so all subsets are tried.

    Args:
        rows: equally long, of at most 12 numbers.
        targets: one for each row.

    Raises ValueError without rows, for different lengths of rows and targets, or for more than 12 columns.
    """
    if not rows or len(rows) != len(targets):
        raise ValueError(f"there must be as many targets as rows, and some: {len(rows)} rows, {len(targets)} targets")
    width = len(rows[0])
    if width > 12:
        raise ValueError(f"{width} columns are more than the 12 of which all sets can be tried")
    scales = [math.sqrt(math.fsum(row[column] ** 2 for row in rows)) for column in range(width)]
    columns = [column for column in range(width) if scales[column] > 0]
    scaled = {column: [row[column] / scales[column] for row in rows] for column in columns}
    products = {
        (one, two): math.fsum(x * y for x, y in zip(scaled[one], scaled[two], strict=True))
        for one in columns
        for two in columns
    }
    against = {column: math.fsum(x * y for x, y in zip(scaled[column], targets, strict=True)) for column in columns}
    best, found = 0.0, [0.0] * width
    for count in range(1, len(columns) + 1):
        for chosen in itertools.combinations(columns, count):
            solution = _solve(
                [[products[one, two] for two in chosen] for one in chosen], [against[column] for column in chosen]
            )
            if solution is None or min(solution) < 0:
                continue
            # The explained part of the targets' sum of squares; the residual is the rest of it.
            explained = math.fsum(value * against[column] for value, column in zip(solution, chosen, strict=True))
            if explained > best * (1 + 1e-12):
                best, found = explained, [0.0] * width
                for value, column in zip(solution, chosen, strict=True):
                    found[column] = value / scales[column]
    return found


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Return the solution of a small symmetric system; None if its columns are linearly dependent."""
    size = len(right)
    table = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for place in range(size):
        pivot = max(range(place, size), key=lambda row: abs(table[row][place]))
        if abs(table[pivot][place]) < 1e-11:
            return None
        table[place], table[pivot] = table[pivot], table[place]
        for row in range(size):
            if row != place and table[row][place] != 0.0:
                factor = table[row][place] / table[place][place]
                table[row] = [x - factor * y for x, y in zip(table[row], table[place], strict=True)]
    return [table[place][size] / table[place][place] for place in range(size)]
