"""Which of many series stands out from the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low
from typing import Any

__all__ = ["standing_out"]

_SPREAD = 3 * 1.4826  # times the median deviation: three standard deviations where values are normally distributed


def standing_out(
    data: Sequence[dict[str, Any]], *, ratio: float = 1.25, lowest: bool = False, least_values: int = 3
) -> list[dict[str, Any]]:
    """The records of `data`, as AnalysisClient.get_data() gives them, whose values are much higher than the others'.

    A record stands for the median of its values, and the median of all records is what is usual. One stands out that is
    more than `ratio` times that, and farther from it than the spread among the records explains; with `lowest` one that
    is less than that divided by `ratio`. Of two records one may stand out, one alone never does, and one with fewer
    than `least_values` values is left out. Raises ValueError for a ratio that is not above 1.
    """
    if not ratio > 1:
        raise ValueError(f"ratio={ratio}: it is a number above 1; 1.25 means a quarter more than is usual")
    values = [[value for value in record["dps"].values() if not math.isnan(value)] for record in data]
    # The other side up, lower values stand out as higher ones do.
    side = -1 if lowest else 1
    known = [
        (side * median_low(found), record)
        for record, found in zip(data, values, strict=True)
        if len(found) >= max(1, least_values)
    ]
    if not known:
        return []
    usual = median_low([value for value, _ in known])
    spread = median_low([abs(value - usual) for value, _ in known])
    allowed = max((1 - 1 / ratio if lowest else ratio - 1) * abs(usual), _SPREAD * spread)
    return [record for value, record in known if value - usual > allowed]
