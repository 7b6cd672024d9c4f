"""The goodput of a job by the number of its devices and the size of its batch, and the profiles of applications."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchloader_papers.goodput import Linear, Profile, Stage
from torchloader_papers.traces import PROFILES

MEASURED = Path(__file__).parents[1] / "traces" / "pollux"
SIMPLE = Profile(
    gradient=Linear(0.1, 0.01),
    local=Linear(0.02, 0.01),
    nodes=Linear(0.2, 0.02),
    overlap=2.0,
    initial=16,
    fixed=64,
    largest=1024,
    fitting=32,
    most=64,
    stages=(Stage(100.0, 32.0), Stage(1000.0, 512.0)),
)
applications = st.sampled_from(sorted(PROFILES))
sizes = st.integers(1, 64)


def test_one_device_does_not_synchronize() -> None:
    assert SIMPLE.synchronization(1, spread=False) == 0
    assert SIMPLE.iteration(1, False, 20) == pytest.approx(0.1 + 0.01 * 20)


def test_several_devices_synchronize_at_the_rate_of_their_nodes() -> None:
    assert SIMPLE.synchronization(4, spread=False) == pytest.approx(0.02 + 2 * 0.01)
    assert SIMPLE.synchronization(4, spread=True) == pytest.approx(0.2 + 2 * 0.02)
    assert SIMPLE.iteration(4, True, 80) == pytest.approx(math.hypot(0.1 + 0.01 * 20, 0.24))


def test_gradient_and_synchronization_add_up_or_overlap() -> None:
    apart, together = replace(SIMPLE, overlap=1.0), replace(SIMPLE, overlap=1e6)
    assert apart.iteration(4, True, 80) == pytest.approx(0.3 + 0.24)
    assert together.iteration(4, True, 80) == pytest.approx(0.3, rel=1e-4)


def test_gradients_are_accumulated_if_a_batch_does_not_fit() -> None:
    # 64 samples of a device are two passes of 32, of which the last one synchronizes.
    once = SIMPLE.iteration(2, False, 64)
    assert SIMPLE.iteration(2, False, 128) == pytest.approx(once + 0.1 + 0.01 * 32)


@given(name=applications, noise=st.floats(0, 1e6), more=st.floats(1, 100))
def test_a_larger_batch_is_less_efficient(name: str, noise: float, more: float) -> None:
    profile = PROFILES[name]
    assert profile.efficiency(profile.initial, noise) == 1
    assert profile.initial / (profile.initial * more) - 1e-9 <= profile.efficiency(profile.initial * more, noise) <= 1


@given(name=applications, part=st.floats(0, 1), devices=sizes, spread=st.booleans())
def test_the_adapted_batch_is_at_least_as_good_as_others(name: str, part: float, devices: int, spread: bool) -> None:
    profile = PROFILES[name]
    best = profile.chosen(devices, spread, part * profile.length, adapts=True)
    for batch in (profile.initial, profile.largest):
        fixed = replace(profile, fixed=batch).chosen(devices, spread, part * profile.length, adapts=False)
        assert best.goodput >= fixed.goodput * (1 - 1e-9)
    assert best.goodput <= best.throughput
    assert profile.initial <= best.batch <= max(profile.largest, devices)


@given(name=applications, devices=sizes, spread=st.booleans(), parts=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_the_rest_of_a_training_takes_less_time_than_all_of_it(
    name: str, devices: int, spread: bool, parts: tuple[float, float]
) -> None:
    profile = PROFILES[name]
    early, late = sorted(part * profile.length for part in parts)
    assert profile.seconds(devices, spread, early) >= profile.seconds(devices, spread, late) - 1e-6
    assert profile.seconds(devices, spread, profile.length) == pytest.approx(0, abs=1e-6)


def test_the_time_of_a_training_is_the_sum_of_its_stages() -> None:
    speed = 64 / SIMPLE.iteration(2, False, 64)
    first, second = ((noise + 16) / (noise + 64) for noise in (32.0, 512.0))
    assert SIMPLE.seconds(2, False) == pytest.approx(100 * 16 / (speed * first) + 900 * 16 / (speed * second))
    assert SIMPLE.seconds(2, False, 550) == pytest.approx(450 * 16 / (speed * second))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"fixed": 8}, "must rise from 1, not 16, 8 and 1024"),
        ({"overlap": 0.5}, "must be at least 1, not 32, 64 and 0.5"),
        ({"stages": ()}, "must end one after the other"),
        ({"stages": (Stage(5.0, 1.0), Stage(5.0, 1.0))}, r"not at \[5.0, 5.0\]"),
    ],
)
def test_values_that_do_not_fit_together_are_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(SIMPLE, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["cifar10", "bert", "yolov3", "imagenet"])
def test_the_profile_of_an_application_is_near_the_measured_seconds(name: str) -> None:
    with (MEASURED / name / "placements.csv").open() as file:
        rows = list(csv.DictReader(file))
    profile = replace(PROFILES[name], fitting=10**6)
    errors = []
    for row in rows:
        devices, spread = sum(map(int, row["placement"])), len(row["placement"]) > 1
        seconds = profile.iteration(devices, spread, float(row["local_bsz"]) * devices)
        errors.append(math.log(seconds / float(row["step_time"])))
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) < 0.22


@pytest.mark.parametrize(("name", "batch"), [("cifar10", 1024), ("imagenet", 800), ("deepspeech2", 160)])
def test_the_noise_scale_of_an_application_is_the_measured_one(name: str, batch: int) -> None:
    profile = PROFILES[name]
    with (MEASURED / name / f"validation-{batch}.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        noise = profile.initial * float(row["grad_var"]) / float(row["grad_sqr"])
        assert profile.stage(float(row["progress"]) - 1).noise == pytest.approx(noise, rel=0.01)
    assert profile.length == float(rows[-1]["progress"])


@pytest.mark.parametrize(
    ("name", "devices", "batch", "published"),
    [
        ("cifar10", 16, 4096, 485),
        ("cifar10", 8, 2048, 870),
        ("deepspeech2", 12, 640, 2490),
        ("deepspeech2", 6, 320, 4120),
        ("bert", 6, 384, 3120),
        ("bert", 16, 384, 1335),
        ("yolov3", 4, 64, 14110),
        ("imagenet", 24, 3200, 52540),
        ("imagenet", 48, 6400, 50540),
    ],
)
def test_a_training_takes_about_the_time_of_uncontended_jobs_in_the_published_results(
    name: str, devices: int, batch: int, published: float
) -> None:
    seconds = replace(PROFILES[name], fixed=batch).seconds(devices, spread=devices > 4)
    assert seconds == pytest.approx(published, rel=0.2)
