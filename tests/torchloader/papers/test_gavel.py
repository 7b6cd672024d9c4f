"""Gavel: parts of the cluster's time, on several kinds of devices."""

from __future__ import annotations

import contextlib
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torchloader_papers.__main__ import main
from torchloader_papers.fractions import Claim, fractions
from torchloader_papers.gavel import AGNOSTIC, GAVEL, Gavel, portions
from torchloader_papers.gavel_models import KINDS, STEPS, gavel_jobs, speeds_of
from torchloader_papers.traces import read_trace

from torchloader.allocation.catalogue import policy
from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import Application, Cause, Node, Pause, Spec, State
from torchloader.scheduling.orders import ARRIVAL, Order
from torchloader.scheduling.scheduler import Scheduler
from torchloader.simulation.result import Result
from torchloader.simulation.simulator import simulate
from torchloader.simulation.workload import Job

FAST, SLOW = Node(8, (0, 1), kind="v100"), Node(8, (0, 1), kind="k80")
BOTH = {"fast": FAST, "slow": SLOW}
SPEEDS = {"v100": 1.0, "k80": 0.25}


def job(name: str, arrival: float, seconds: float, devices: int = 1, **speeds: float) -> Job:
    """Return a job that takes this number of seconds on devices of speed 1, and never waits for data."""
    made = Spec(name, "resnet", devices, 10 * devices, int(seconds * 10), arrival=arrival, speeds=speeds)
    return Job(made, Curve(100, 0.001))


def run(jobs: list[Job], nodes: dict[str, Node], by: Order, **more: Any) -> Result:
    return simulate(jobs, nodes, Scheduler(policy("proportional"), order=by), **more)


def served(claim: Claim, parts: tuple[float, ...], devices: tuple[int, ...]) -> float:
    """Return how well an application is served, as `fractions` defines it."""
    equal = sum(speed * there for speed, there in zip(claim.speeds, devices, strict=True)) / sum(devices)
    made = sum(speed * part for speed, part in zip(claim.speeds, parts, strict=True))
    return made / equal * claim.size / claim.weight


CLAIMS = st.builds(
    Claim,
    st.sampled_from((1, 1, 2)),
    st.sampled_from((1.0, 1.0, 3.0)),
    st.tuples(*[st.sampled_from((0.0, 0.3, 1.0, 4.0))] * 2).filter(any),
)


def test_the_fractions_of_the_papers_example() -> None:
    # Gavel, section 4.1: three jobs on one V100 and one K80, each served a tenth better than by a third of the time.
    claims = [Claim(1, 1.0, speeds) for speeds in ((40.0, 10.0), (12.0, 4.0), (100.0, 50.0))]
    found = fractions(claims, (1, 1))
    assert [part for parts in found for part in parts] == pytest.approx([5 / 11, 0, 5 / 11, 1 / 11, 1 / 11, 10 / 11])
    thirds = [served(claim, (1 / 3, 1 / 3), (1, 1)) for claim in claims]
    assert [served(*each, (1, 1)) / third for *each, third in zip(claims, found, thirds, strict=True)] == pytest.approx(
        [12 / 11] * 3
    )


@pytest.mark.parametrize(
    ("claims", "devices", "parts"),
    [
        # The kind that helps one of them most is its own.
        ([(1, 1.0, (4.0, 1.0)), (1, 1.0, (1.0, 1.0))], (1, 1), [(1, 0), (0, 1)]),
        # Twice the weight is twice the part.
        ([(1, 2.0, (1.0, 0.0)), (1, 1.0, (1.0, 0.0))], (1, 1), [(2 / 3, 0), (1 / 3, 0)]),
        # Two devices count as twice the service.
        ([(2, 1.0, (1.0, 1.0)), (1, 1.0, (1.0, 0.0))], (2, 0), [(0.5, 0), (1, 0)]),
        # Of equally fair ones the fastest.
        ([(1, 1.0, (3.0, 2.0))], (4, 4), [(1, 0)]),
        # It fits on no kind.
        ([(8, 1.0, (1.0, 1.0)), (1, 1.0, (1.0, 2.0))], (4, 4), [(0, 0), (0, 1)]),
        ([], (4, 4), []),
    ],
)
def test_fractions_that_are_known(
    claims: list[tuple[int, float, tuple[float, ...]]], devices: tuple[int, ...], parts: list[tuple[float, ...]]
) -> None:
    found = fractions([Claim(*each) for each in claims], devices)
    assert [part for each in found for part in each] == pytest.approx([part for each in parts for part in each])


@settings(max_examples=60, deadline=None)
@given(claims=st.lists(CLAIMS, min_size=1, max_size=3), devices=st.sampled_from(((2, 2), (2, 3))))
def test_no_other_fractions_serve_the_worst_application_better(claims: list[Claim], devices: tuple[int, ...]) -> None:
    found = fractions(claims, devices)
    for claim, parts in zip(claims, found, strict=True):
        assert sum(parts) <= 1 + 1e-6
        assert all(part == 0 or speed > 0 for part, speed in zip(parts, claim.speeds, strict=True))
    for kind, there in enumerate(devices):
        used = sum(claim.size * parts[kind] for claim, parts in zip(claims, found, strict=True))
        assert used <= there + 1e-6
    best = min(served(claim, parts, devices) for claim, parts in zip(claims, found, strict=True))
    quarters = [pair for pair in itertools.product((0, 0.25, 0.5, 0.75, 1), repeat=2) if sum(pair) <= 1]
    for tried in itertools.product(quarters, repeat=len(claims)):
        used = [sum(c.size * parts[kind] for c, parts in zip(claims, tried, strict=True)) for kind in range(2)]
        if all(each <= there for each, there in zip(used, devices, strict=True)):
            worst = min(served(claim, parts, devices) for claim, parts in zip(claims, tried, strict=True))
            assert worst <= best * 1.01 + 1e-6


def test_equal_applications_get_equal_fractions() -> None:
    claims = [Claim(1, 1.0, speeds) for speeds in ((1.0, 0.5), (1.0, 0.1)) * 4]
    found = fractions(claims, (2, 2))
    assert len(set(found[::2])) == len(set(found[1::2])) == 1


def test_gavel_gives_the_fast_kind_to_the_job_that_gains_most() -> None:
    nodes = {"a": Node(4, (0,), kind="v100"), "b": Node(4, (0,), kind="k80")}
    jobs = [job("1", 0, 3600, v100=1.0, k80=1.0), job("2", 0, 3600, v100=1.0, k80=0.25)]
    for by, longest in ((GAVEL, 3600), (ARRIVAL, 14400)):
        assert run(jobs, nodes, by).makespan == pytest.approx(longest, rel=0.01)


def test_jobs_take_turns_on_the_kinds_if_their_speeds_do_not_count() -> None:
    nodes = {"a": Node(4, (0,), kind="v100"), "b": Node(4, (0,), kind="k80")}
    jobs = [job("1", 0, 1000, **SPEEDS), job("2", 0, 1000, **SPEEDS)]
    result = run(jobs, nodes, Gavel(10, aware=False))
    # Each trains at the mean of both speeds, up to the last round.
    assert [each.finished for each in result.jobs] == pytest.approx([1600, 1600], abs=40)


def test_a_job_that_moves_to_another_kind_is_resumed_there() -> None:
    nodes = {"a": Node(4, (0,), kind="v100"), "b": Node(4, (0,), kind="k80")}
    jobs = [job("1", 0, 1000, **SPEEDS), job("2", 100, 100, v100=1.0)]
    result = run(jobs, nodes, Gavel(100), start=5)
    kinds = [event.details.kind for event in result.events if event.application == "1" and event.details.kind]
    assert kinds[:2] == ["v100", "k80"]
    assert result.jobs[0].finished > 1000 + 5 * len(kinds)


def test_gavel_needs_no_scipy_on_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert run([job("1", 0, 100, v100=2.0)], {"fast": FAST}, GAVEL).makespan == pytest.approx(50)
    with pytest.raises(ModuleNotFoundError, match=r"needs scipy .*: pip install scipy"):
        run([job("1", 0, 100, v100=2.0, k80=0.7)], BOTH, GAVEL)


@pytest.mark.parametrize("by", [GAVEL, AGNOSTIC], ids=lambda by: by.name)
def test_a_job_that_can_never_start_is_an_error_under_each_order(by: Order) -> None:
    with pytest.raises(ValueError, match="job 'a' can never start"):
        run([job("a", 0, 100, 8)], BOTH, by)


def test_the_models_of_gavel_have_speeds_on_the_kinds_on_which_they_run() -> None:
    assert speeds_of("A3C", 1, "v100") == pytest.approx({"v100": 1, "p100": 0.767, "k80": 0.473}, abs=0.001)
    assert set(speeds_of("ResNet-50", 128, "v100")) == {"v100", "p100"}
    assert sum(map(len, STEPS.values())) == 26


def test_jobs_of_gavel_are_as_long_on_a_v100_as_in_its_paper() -> None:
    jobs = gavel_jobs(4000, seed=0, rate=5.0)
    assert sum(each.shortest for each in jobs) / len(jobs) == pytest.approx(16.8 * 3600, rel=0.06)
    assert jobs[-1].spec.arrival / len(jobs) == pytest.approx(3600 / 5, rel=0.05)
    assert {each.spec.size for each in jobs} == {1}
    with pytest.raises(ValueError, match="must be positive"):
        gavel_jobs(4, seed=0, rate=0.0)


def test_the_cluster_of_gavels_paper_can_serve_as_many_jobs_an_hour_as_the_guide_says() -> None:
    hours = 16.77  # of a job on a V100: the mean of 10^x minutes
    speeds = [
        [speeds_of(model, batch, "v100").get(kind, 0.0) for kind in KINDS]
        for model, batches in STEPS.items()
        for batch in batches
    ]
    equal = 108 / (hours * sum(3 / sum(each) for each in speeds) / len(speeds))
    # The largest rate at which the devices of each kind suffice, by the devices for each model on each kind.
    rows = [[0.0] * (3 * len(speeds)) + [hours / len(speeds)] for _ in speeds]
    for number, each in enumerate(speeds):
        rows[number][3 * number : 3 * number + 3] = [-speed for speed in each]
    rows += [[1.0 if column % 3 == kind else 0.0 for column in range(3 * len(speeds))] + [0.0] for kind in range(3)]
    bounds = [0.0] * len(speeds) + [36.0] * 3
    best = -linprog([0.0] * (3 * len(speeds)) + [-1.0], A_ub=rows, b_ub=bounds).fun
    assert (equal, best) == pytest.approx((4.2, 4.9), abs=0.05)


def test_jobs_of_gavels_traces_have_speeds_relative_to_a_p100() -> None:
    jobs = read_trace(Path(__file__).parents[1] / "traces" / "gavel-max-min-fairness.trace", "gavel")
    assert all(set(each.spec.speeds) <= set(KINDS) and each.spec.speeds["p100"] == 1 for each in jobs)


def simulated(*words: str) -> list[str]:
    return ["--jobs", "8", "--seeds", "1", "--policy", "gpu-proportional", *words]


def test_the_command_simulates_nodes_of_several_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--mix",
        "gavel",
        "--kinds",
        "v100=1,k80=2",
        "--gpus",
        "2",
        "--order",
        "gavel",
        "--order",
        "gavel-agnostic",
    ]
    assert main(simulated(*words)) == 0
    told = capsys.readouterr()
    aware, agnostic = (line.split() for line in told.out.splitlines()[1:3])
    assert aware[0] == "gpu-proportional+gavel"
    assert float(aware[1].replace(",", "")) < float(agnostic[1].replace(",", ""))
    assert "on 6 devices and 72 cores of 3 nodes" in told.out
    assert told.err == ""


def test_the_command_says_if_no_job_has_speeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(simulated("--kinds", "v100=1,k80=1")) == 0
    assert "no job has speeds, so all kinds are equally fast" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--kinds", "v100"], "must be names with numbers of at least 1, such as v100=2,k80=4, not v100"),
        (["--kinds", "v100=1,v100=2"], "must be names with numbers"),
        (["--kinds", "v100=0"], "must be names with numbers"),
        (["--kinds", "v100=1", "--nodes", "2"], "--kinds gives the nodes"),
        (["--mix", "gavel", "--several"], "have one GPU each"),
        (["--mix", "gavels"], "must be 3 numbers"),
    ],
)
def test_options_that_contradict_are_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        assert main(simulated(*words)) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sizes", "weights", "devices", "parts"),
    [
        ((1, 1, 1), (1, 1, 1), 2, (2 / 3, 2 / 3, 2 / 3)),
        ((4, 1), (1, 1), 2, (1 / 4, 1)),
        ((1, 1), (3, 1), 1, (3 / 4, 1 / 4)),
        ((1, 2), (1, 1), 8, (1, 1)),
        ((), (), 4, ()),
    ],
)
def test_unused_shares_of_time_go_to_other_jobs(
    sizes: tuple[int, ...], weights: tuple[float, ...], devices: int, parts: tuple[float, ...]
) -> None:
    assert portions(sizes, weights, devices) == pytest.approx(parts)


@given(
    shapes=st.lists(st.tuples(st.integers(1, 8), st.floats(0.1, 10)), min_size=1, max_size=12),
    devices=st.integers(1, 20),
)
def test_the_portions_of_time_are_max_min_fair(shapes: list[tuple[int, float]], devices: int) -> None:
    sizes, weights = zip(*shapes, strict=True)
    parts = portions(sizes, weights, devices)
    assert sum(size * part for size, part in zip(sizes, parts, strict=True)) == pytest.approx(min(devices, sum(sizes)))
    served = [size * part / weight for size, weight, part in zip(sizes, weights, parts, strict=True)]
    most = max(served)
    assert all(part == pytest.approx(1) or got == pytest.approx(most) for part, got in zip(parts, served, strict=True))


def test_two_jobs_use_one_device_in_alternating_rounds() -> None:
    result = simulate(
        [job("a", 0, 30), job("b", 0, 30)], {"n": Node(4, (0,))}, Scheduler(policy("even"), order=Gavel(10))
    )
    assert [each.finished for each in result.jobs] == pytest.approx([50, 60])


def test_no_job_is_preempted_before_the_end_of_a_round() -> None:
    waits = Application(Spec("new", "resnet", 2, 10, 1000, arrival=5.0))
    held = {"state": State.RUNNING, "placement": {"a": (0, 1)}, "workers": 1, "began": 0.0, "placed": 0.0}
    both = {"old": Application(Spec("old", "resnet", 2, 10, 1000), **held), "new": waits}  # type: ignore[arg-type]
    scheduler = Scheduler(policy("proportional"), order=Gavel(10))
    nodes = {"a": Node(8, (0, 1))}
    assert not any(isinstance(action, Pause) for action in scheduler.decide(9.0, both, nodes, Cause.ARRIVAL))
    assert scheduler.next_time(9.0, both) == 10.0
    assert scheduler.decide(10.0, both, nodes, Cause.ARRIVAL) == [Pause("old", "it yields its devices")]


def test_a_round_of_zero_seconds_is_refused() -> None:
    with pytest.raises(ValueError, match="a round must take some seconds, not 0"):
        Gavel(0)
