"""The prediction of the speed of jobs, from a prior before they run and from measurements while they run."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from torchloader.prediction.curve import Belief, Curve, Guess
from torchloader.prediction.measured import Interval, Measured
from torchloader.prediction.prior import COLUMNS, Counts, Features, Prior, Row, fit, nonnegative


def pipeline(chance: random.Random) -> Curve:
    """Return a typical pipeline: 1 to 16 workers keep up with the device, or no number does."""
    ceiling = chance.uniform(50, 2000)
    return Curve(ceiling, chance.uniform(1, 12) / ceiling, chance.choice([0.0, chance.uniform(0, 0.6) / ceiling]))


def second(curve: Curve, workers: int, chance: random.Random, noise: float = 0.1) -> Interval:
    """Return one second of a job as its loader would report it, with noise in all measurements."""
    rate = curve.throughput(workers) * chance.gauss(1, noise)
    computed = min(1.0, rate / curve.ceiling * chance.gauss(1, noise / 3))
    at_once = min(workers, rate * curve.service / max(1e-9, 1 - rate * curve.shared))
    service = (curve.service + curve.shared * at_once) * chance.gauss(1, noise)
    waits = curve.loading(workers) < 0.93 * curve.ceiling
    return Interval(workers, rate, 1.0, 1.0 - computed if waits else 0.0, service)


def error(known: Curve, true: Curve) -> float:
    counts = range(1, 17)
    return sum(abs(known.throughput(w) - true.throughput(w)) / true.throughput(w) for w in counts) / len(counts)


def usual(chance: random.Random) -> Guess:
    """Return the mean and the variance of 200 other pipelines."""
    seen = [pipeline(chance) for _ in range(200)]
    return Guess(
        Belief.of([1 / curve.ceiling for curve in seen]),
        Belief.of([curve.service for curve in seen]),
        Belief.of([curve.shared for curve in seen]),
    )


@pytest.mark.parametrize("changes", [0, 1, 2])
def test_after_a_minute_the_curve_is_known_within_ten_percent(changes: int) -> None:
    chance = random.Random(changes)
    guess = usual(chance)
    errors = []
    for _ in range(100):
        true, measured = pipeline(chance), Measured(guess)
        counts = [chance.randint(1, 12) for _ in range(changes + 1)]
        for moment in range(60):
            measured.observe(second(true, counts[moment * len(counts) // 60], chance))
        errors.append(error(measured.curve(), true))
    assert sum(errors) / len(errors) <= 0.10


def test_measurements_alone_determine_the_curve_without_a_guess() -> None:
    chance = random.Random(7)
    errors = []
    for _ in range(100):
        true, measured = pipeline(chance), Measured()
        for moment in range(60):
            measured.observe(second(true, (2, 8)[moment // 30], chance))
        errors.append(error(measured.curve(), true))
    assert sum(errors) / len(errors) <= 0.10


def test_the_confidence_interval_contains_the_true_value_in_85_percent() -> None:
    chance = random.Random(3)
    held = []
    for _ in range(200):
        true, measured = pipeline(chance), Measured()
        for moment in range(60):
            measured.observe(second(true, (1, 4, 9)[moment // 20], chance))
        low, high = measured.between(5)
        assert 0 <= low <= measured.curve().throughput(5) * (1 + 1e-9)
        assert measured.curve().throughput(5) <= high * (1 + 1e-9)
        held.append(low <= true.throughput(5) <= high)
    assert sum(held) / len(held) >= 0.85


def test_intervals_become_narrower_with_more_measurements() -> None:
    chance, true = random.Random(1), Curve(1000, 0.01)
    widths = []
    measured = Measured()
    for moment in range(40):
        measured.observe(second(true, 4, chance))
        if moment in (3, 39):
            low, high = measured.between(4)
            widths.append(high - low)
    assert widths[1] < widths[0] / 2


def test_a_change_is_detected_and_earlier_measurements_are_discarded() -> None:
    chance, measured = random.Random(5), Measured()
    for _ in range(100):
        assert not measured.observe(second(Curve(500, 0.02), 4, chance))
    slower = Curve(500, 0.04)
    noticed = [measured.observe(second(slower, 4, chance)) for _ in range(30)]
    assert True in noticed[:10]
    assert measured.curve().throughput(4) == pytest.approx(slower.throughput(4), rel=0.1)


def test_an_outlier_is_not_detected_as_a_change() -> None:
    chance, true, measured = random.Random(5), Curve(500, 0.02), Measured()
    for moment in range(100):
        interval = second(true, 4, chance)
        if moment == 60:
            interval = Interval(4, interval.samples / 20, 1.0, 0.99, interval.service)
        assert not measured.observe(interval)
    assert measured.curve().throughput(4) == pytest.approx(true.throughput(4), rel=0.1)


def test_a_job_without_waits_and_times_is_assumed_to_load_just_fast_enough() -> None:
    measured = Measured()
    measured.observe(Interval(workers=4, samples=100, seconds=1))
    assert measured.curve() == Curve(100, 0.04)
    assert measured.curve().enough(16) == 4


def test_the_smallest_number_of_workers_without_waits_is_enough() -> None:
    measured = Measured(forgetting=1.0)
    for workers in (1, 2, 4, 8):
        measured.observe(Interval(workers=workers, samples=100, seconds=1))
    assert [measured.curve().throughput(workers) for workers in (1, 2, 4, 8)] == pytest.approx([100] * 4)
    assert measured.curve().enough(16) == 1


def test_a_curve_without_observations_raises_an_error() -> None:
    measured = Measured()
    assert not measured.observe(Interval(workers=1, samples=0, seconds=1, waited=1))
    assert not measured.known
    with pytest.raises(ValueError, match="nothing has been observed"):
        measured.curve()


intervals = st.builds(
    lambda workers, samples, seconds, part, service: Interval(workers, samples, seconds, seconds * part, service),
    st.integers(1, 64),
    st.floats(1e-3, 1e6),
    st.floats(1e-3, 1e3),
    st.floats(0, 1),
    st.none() | st.floats(1e-6, 1e3),
)


@given(st.lists(intervals, min_size=1, max_size=40))
def test_any_observations_give_a_finite_curve(seen: list[Interval]) -> None:
    measured = Measured()
    for interval in seen:
        measured.observe(interval)
    if measured.known:
        curve = measured.curve()
        for workers in (1, 7, 64):
            low, high = measured.between(workers)
            assert 0 <= low <= high
            assert math.isfinite(high)
            assert math.isfinite(curve.throughput(workers))


@given(st.integers(0, 1000), st.integers(1, 7))
def test_nonnegative_least_squares_agrees_with_scipy(seed: int, width: int) -> None:
    pytest.importorskip("torch")
    chance = np.random.default_rng(seed)
    rows, targets = chance.uniform(0, 1, (width + 6, width)), chance.normal(0.5, 1, width + 6)
    ours = nonnegative(rows.tolist(), targets.tolist())
    assert min(ours) >= 0
    theirs, residual = nnls(rows, targets)
    assert float(np.linalg.norm(rows @ np.array(ours) - targets)) == pytest.approx(residual, rel=1e-7)
    assert ours == pytest.approx(theirs.tolist(), abs=1e-5)


def measurements(count: int, noise: float = 0.03) -> list[Row]:
    """Return iterations of synthetic models on a synthetic device."""
    pytest.importorskip("torch")  # which fits priors
    chance = random.Random(11)
    rows = []
    for number in range(count):
        counts = Counts(chance.randint(5 * 10**6, 2 * 10**8), *(chance.randint(10**8, 8 * 10**9) for _ in range(4)))
        for devices, batch in ((1, 32), (2, 64), (4, 128)):
            features = Features(devices, batch, counts)
            true = (3e-10, 2e-11, 1e-13, 4e-13, 6e-13, 2e-12, 5e-13)
            seconds = sum(c * x for c, x in zip(true, features.row(), strict=True)) * chance.gauss(1, noise)
            rows.append(Row(f"model{number}", features, seconds, chance.uniform(0.001, 0.01)))
    return rows


def test_a_prior_predicts_the_time_of_models_outside_its_fit() -> None:
    rows = measurements(30)
    prior = fit(rows[:60])
    assert min(prior.coefficients.values()) >= 0
    assert prior.error <= 0.10
    errors = [abs(prior.seconds(row.features) - row.seconds) / row.seconds for row in rows[60:]]
    assert sum(errors) / len(errors) <= 0.10


def test_a_prior_can_be_saved_as_json_and_loaded(tmp_path: Path) -> None:
    prior = fit(measurements(6), {"torch": "2.13"})
    prior.save(tmp_path / "prior.json")
    assert Prior.load(tmp_path / "prior.json") == prior
    assert set(json.loads((tmp_path / "prior.json").read_text())["seconds"]) == set(COLUMNS)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"version": 2}, "torchloader-prior 2"), ({"error": None}, "float"), ({"seconds": {}}, "missing")],
)
def test_the_error_about_an_invalid_prior_names_the_file(tmp_path: Path, change: dict[str, object], says: str) -> None:
    path = tmp_path / "prior.json"
    fit(measurements(6)).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=rf"prior.json is not a prior.*{says}"):
        Prior.load(path)
    path.write_text(5000 * "[")
    with pytest.raises(ValueError, match=r"prior.json is not a prior"):
        Prior.load(path)


def test_a_fit_to_a_single_model_is_refused() -> None:
    with pytest.raises(ValueError, match="two at least"):
        fit(measurements(1))


def test_measurements_outweigh_a_wrong_guess() -> None:
    chance, true = random.Random(2), Curve(1000, 0.01)
    measured = Measured(Guess(Belief(0.01, 0.002**2), Belief(0.1, 0.03**2), Belief(0.0, 0.001**2)))
    before = error(measured.curve(), true)
    for moment in range(60):
        measured.observe(second(true, (3, 12)[moment // 30], chance))
    assert before > 0.5
    assert error(measured.curve(), true) <= 0.1
