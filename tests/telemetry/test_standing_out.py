"""The rule that decides which series of a metric stand out from the others."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragon.telemetry import Detector, SlowGPUDetector

# Seconds that each of eight GPUs took for the same work, three times; the first time of some is that of a cold start.
GPUS = {
    "node-0 0": [0.0412, 0.0236, 0.0237],
    "node-0 1": [0.0238, 0.0236, 0.0238],
    "node-0 2": [0.0237, 0.0239, 0.0237],
    "node-0 3": [0.0240, 0.0238, 0.0237],
    "node-1 0": [0.0398, 0.0237, 0.0236],
    "node-1 1": [0.0236, 0.0237, 0.0238],
    "node-1 2": [0.0341, 0.0352, 0.0349],  # its clock is throttled
    "node-1 3": [0.0239, 0.0236, 0.0237],
}


def records(series: dict[str, list[float]]) -> list[dict[str, Any]]:
    return [
        {"metric": "seconds", "tags": {"place": place}, "dps": {str(time): value for time, value in enumerate(values)}}
        for place, values in series.items()
    ]


def outliers(series: dict[str, list[float]], **options: object) -> list[str]:
    return [record["tags"]["place"] for record in Detector.analyze_data(records(series), options)]


def steady(*levels: float) -> dict[str, list[float]]:
    return {str(place): [level] * 3 for place, level in enumerate(levels)}


def test_a_slow_gpu_stands_out_and_a_cold_start_does_not() -> None:
    (found,) = SlowGPUDetector.analyze_data(records(GPUS), None)
    assert found["tags"] == {"place": "node-1 2"}


def test_gpus_that_are_alike_do_not_stand_out() -> None:
    alike = {place: values for place, values in GPUS.items() if place != "node-1 2"}
    assert SlowGPUDetector.analyze_data(records(alike), None) == []


def test_the_ratio_determines_which_series_are_slow() -> None:
    assert outliers(steady(1.0, 1.0, 1.2)) == []
    assert outliers(steady(1.0, 1.0, 1.2), ratio=1.1) == ["2"]


def test_one_of_two_series_can_stand_out_and_a_single_one_cannot() -> None:
    assert outliers(steady(1, 2)) == ["1"]
    assert outliers(steady(2)) == []
    assert outliers({}) == []


def test_values_with_a_large_spread_do_not_stand_out() -> None:
    assert outliers(steady(10, 30, 50, 70, 90)) == []


def test_the_lowest_series_can_be_selected() -> None:
    assert outliers(steady(95, 96, 97, 20), lowest=True) == ["3"]
    assert outliers(steady(95, 96, 97, 20)) == []
    assert outliers(steady(20, 95), lowest=True) == ["0"]


def test_series_with_few_values_and_nan_are_ignored() -> None:
    slow = {"slow": [9.0, 9.0]}
    assert outliers({**steady(1, 1, 1), **slow}) == []
    assert outliers({**steady(1, 1, 1), **slow}, least_values=2) == ["slow"]
    assert outliers({**steady(1, 1, 1), "slow": [9.0, 9.0, math.nan]}) == []


def test_an_infinite_value_stands_out() -> None:
    assert outliers(steady(1, 1, math.inf)) == ["2"]


@given(
    levels=st.lists(st.floats(0.001, 1000), max_size=12),
    factor=st.sampled_from([0.125, 2.0, 64.0]),
    seed=st.randoms(use_true_random=False),
)
def test_units_and_order_do_not_matter(levels: list[float], factor: float, seed: random.Random) -> None:
    series = steady(*levels)
    shuffled = list(series)
    seed.shuffle(shuffled)
    changed = {place: [value * factor for value in series[place]] for place in shuffled}
    assert sorted(outliers(changed)) == sorted(outliers(series))


def test_at_most_half_of_the_series_stand_out() -> None:
    for seed in range(20):
        levels = [random.Random(seed).choice([1.0, 5.0]) for _ in range(9)]
        assert len(outliers(steady(*levels))) <= len(levels) // 2


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ValueError, match="must be above 1"):
        outliers(steady(1, 2), ratio=1.0)
    with pytest.raises(TypeError, match="ration"):
        outliers(steady(1, 2), ration=2.0)
