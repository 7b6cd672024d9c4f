"""Finds series that stand out from the others."""

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
    """Return the records of `data` (from AnalysisClient.get_data()) whose values are much higher than the others'.

    A record is represented by the median of its values; the usual value is the median of all records. A record stands
    out if it exceeds the usual value by the factor `ratio`, and by more than the spread among the records explains;
    with `lowest`, if it is below the usual value divided by `ratio`. Of two records one may stand out, a single one
    never does, and records with fewer than `least_values` values are ignored. Raises ValueError for a ratio that is not
    above 1.
    """
    if not ratio > 1:
        raise ValueError(f"ratio={ratio}: it must be above 1; 1.25 means a quarter more than usual")
    values = [[value for value in record["dps"].values() if not math.isnan(value)] for record in data]
    # With the sign reversed, low values stand out as high ones do.
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
