"""Synergy's sharing of cores, and the workloads on which it was evaluated."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchloader_papers.derived import MODELS, Model, derived
from torchloader_papers.synergy import SYNERGY

from torchloader.allocation.catalogue import policy
from torchloader.allocation.problem import Demand, used
from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import Node
from torchloader.scheduling.scheduler import Scheduler
from torchloader.simulation.simulator import simulate

SHARES = policy("gpu-proportional")
HUNGRY, MODEST = Curve(100, 0.12), Curve(100, 0.01)  # twelve workers are enough, and one is


def demand(name: str, curve: Curve, size: int = 1, **more: float) -> Demand:
    return Demand(name, {"n": size}, curve, **more)  # type: ignore[arg-type]


def test_jobs_that_need_little_give_cores_to_jobs_that_need_much() -> None:
    jobs = [demand("hungry", HUNGRY), *(demand(f"modest{number}", MODEST) for number in range(3))]
    assert SYNERGY(jobs, {"n": 16}) == {"hungry": 12, "modest0": 1, "modest1": 1, "modest2": 1}


def test_the_first_of_two_jobs_that_need_much_gets_all_that_it_needs() -> None:
    jobs = [demand("a", HUNGRY), demand("b", HUNGRY, arrival=1.0), demand("c", MODEST), demand("d", MODEST)]
    assert SYNERGY(jobs, {"n": 20}) == {"a": 12, "b": 6, "c": 1, "d": 1}


def test_no_cores_are_taken_from_the_shares_of_jobs_that_need_them() -> None:
    jobs = [demand(name, HUNGRY) for name in "abcd"]
    assert SYNERGY(jobs, {"n": 16}) == dict.fromkeys("abcd", 4)


def test_a_job_of_many_devices_is_served_before_one_of_few() -> None:
    jobs = [demand("narrow", HUNGRY), demand("wide", HUNGRY, size=2, arrival=1.0), demand("modest", MODEST)]
    assert SYNERGY(jobs, {"n": 33}) == {"narrow": 8, "wide": 12, "modest": 1}


def test_a_job_that_no_number_satisfies_gets_cores_until_more_have_no_effect() -> None:
    jobs = [demand("disk", Curve(100, 0.01, 0.02))]
    assert SYNERGY(jobs, {"n": 1000})["disk"] == 17


JOBS = st.lists(
    st.tuples(st.integers(1, 30), st.floats(0, 0.02), st.sampled_from((1, 1, 2, 4)), st.sampled_from(("a", "b", "ab"))),
    min_size=1,
    max_size=10,
)


@given(shapes=JOBS, cores=st.integers(1, 60))
def test_no_job_is_slower_than_with_equal_shares_and_no_node_is_oversubscribed(
    shapes: list[tuple[int, float, int, str]], cores: int
) -> None:
    jobs = [
        Demand(f"job{place}", dict.fromkeys(nodes, size), Curve(100, needs / 100, shared))
        for place, (needs, shared, size, nodes) in enumerate(shapes)
    ]
    budget = {"a": cores, "b": 2 * cores}
    ours, shares = SYNERGY(jobs, budget), SHARES(jobs, budget)
    assert all(count <= budget[node] for node, count in used(jobs, ours).items())
    for job in jobs:
        assert job.curve.throughput(ours[job.name]) >= 0.97 * job.curve.throughput(shares[job.name])


@pytest.mark.parametrize("model", list(itertools.chain(*MODELS)), ids=lambda model: model.arch)
def test_the_curve_of_a_model_has_its_published_gain(model: Model) -> None:
    curve = model.curve
    assert curve.throughput(model.cores) / curve.throughput(3) == pytest.approx(model.gain)
    assert curve.enough(64) == model.cores


def test_derived_jobs_have_the_given_mix_lengths_and_rate() -> None:
    jobs = derived(2000, 0, (20, 70, 10), rate=9)
    names = [{model.arch for model in models} for models in MODELS]
    parts = [sum(job.spec.arch in group for job in jobs) / len(jobs) for group in names]
    assert parts == pytest.approx([0.2, 0.7, 0.1], abs=0.03)
    minutes = [job.spec.iterations * 100 / job.curve.throughput(3) / 60 for job in jobs]
    assert (min(minutes), max(minutes)) == pytest.approx((10**1.5, 10**4), rel=0.02)
    assert sum(length > 1000 for length in minutes) / len(jobs) == pytest.approx(0.2, abs=0.03)
    assert len(jobs) / jobs[-1].spec.arrival * 3600 == pytest.approx(9, rel=0.1)
    assert {job.spec.size for job in jobs} == {1}
    assert {job.spec.size for job in derived(200, 0, (1, 0, 0), rate=9, largest=8)} == {1, 2, 4, 8}


@pytest.mark.parametrize("mix", [(1, 2), (0, 0, 0), (-1, 1, 1)])
def test_an_invalid_mix_is_refused(mix: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="three parts"):
        derived(10, 0, mix, rate=9)


def test_synergy_is_faster_than_equal_shares_for_image_jobs() -> None:
    nodes = {f"node{number}": Node(24, tuple(range(8))) for number in range(2)}
    jobs = derived(120, 0, (20, 70, 10), rate=1.2)
    ours, fixed = (simulate(jobs, nodes, Scheduler(each)) for each in (SYNERGY, policy("static")))
    assert ours.mean_completion < 0.9 * fixed.mean_completion
