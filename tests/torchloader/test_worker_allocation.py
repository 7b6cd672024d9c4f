"""The allocation of workers to jobs, compared with exact solutions, and within the cores of every node."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchloader_oracle import one_node, problem, several_nodes, worth

from torchloader.allocation.catalogue import POLICIES, Fill, Trim, WithinBudget, policy
from torchloader.allocation.problem import BUSY, COMPLETION, TOTAL, Allocation, Demand, used
from torchloader.prediction.curve import Curve

PROPORTIONAL = policy("proportional")
FAST = Curve(1000, 0.008)  # eight workers are enough
SLOW = Curve(100, 0.02)  # two are


def gap(best: float, found: float) -> float:
    """Return the relative gap to the best sum of logarithms."""
    assert found <= best + 1e-9
    return 0.0 if best - found < 1e-9 else (best - found) / abs(best)


@pytest.mark.parametrize("start", range(0, 700, 100))
def test_steps_of_one_core_are_allocated_optimally(start: int) -> None:
    for seed in range(start, start + 100):
        demands, cores = problem(seed, nodes=1, steps=[1], jobs=(1, 24))
        best = one_node(demands, cores["node0"])
        assert worth(demands, PROPORTIONAL(demands, cores)) == pytest.approx(best, rel=1e-12, abs=1e-12)


def test_steps_of_one_core_are_allocated_optimally_on_separate_nodes() -> None:
    for seed in range(100):
        demands, cores = problem(seed, nodes=4, steps=[1], jobs=(4, 24))
        best = sum(one_node([d for d in demands if node in d.devices], cores[node]) for node in cores)
        assert worth(demands, PROPORTIONAL(demands, cores)) == pytest.approx(best, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("steps", [[1, 2, 4, 8], [2, 3, 5], [8]], ids=str)
def test_steps_of_several_cores_are_allocated_nearly_optimally(steps: list[int]) -> None:
    gaps = []
    for seed in range(120):
        demands, cores = problem(seed, nodes=1, steps=steps, jobs=(2, 12))
        gaps.append(gap(one_node(demands, cores["node0"]), worth(demands, PROPORTIONAL(demands, cores))))
    assert sum(gaps) / len(gaps) <= 0.005


@pytest.mark.parametrize(("nodes", "jobs", "count"), [(2, (2, 8), 60), (4, (3, 16), 60), (6, (20, 40), 8)], ids=str)
def test_jobs_over_several_nodes_are_allocated_nearly_optimally(nodes: int, jobs: tuple[int, int], count: int) -> None:
    gaps = []
    for seed in range(count):
        demands, cores = problem(seed, nodes, steps=[1, 2, 4, 8], jobs=jobs, spread=0.4)
        gaps.append(gap(several_nodes(demands, cores), worth(demands, PROPORTIONAL(demands, cores))))
    assert sum(gaps) / len(gaps) <= 0.005


@pytest.mark.parametrize("objective", [("total", TOTAL), ("busy", BUSY), ("jct", COMPLETION)], ids=lambda o: str(o[0]))
def test_other_objectives_are_maximized(objective: tuple[str, object]) -> None:
    name, value = objective
    for seed in range(60):
        demands, cores = problem(seed, nodes=1, steps=[1], jobs=(1, 12))
        best = one_node(demands, cores["node0"], value)  # type: ignore[arg-type]
        found = worth(demands, policy(name)(demands, cores), value)  # type: ignore[arg-type]
        assert found == pytest.approx(best, rel=1e-12)


def test_max_min_maximizes_the_least_busy_job() -> None:
    demands = [Demand("fast", {"a": 1}, FAST), Demand("slow", {"a": 1}, SLOW)]
    shared = policy("max-min")(demands, {"a": 5})
    assert shared == {"fast": 4, "slow": 1}
    assert min(d.curve.throughput(shared[d.name]) / d.curve.ceiling for d in demands) == pytest.approx(0.5)


def test_jct_prefers_the_job_that_ends_soon() -> None:
    demands = [Demand("long", {"a": 1}, FAST, remaining=1e6), Demand("short", {"a": 1}, FAST, remaining=1e4)]
    assert policy("jct")(demands, {"a": 8}) == {"long": 1, "short": 7}


@given(
    seed=st.integers(0, 10_000),
    nodes=st.integers(1, 4),
    scarce=st.floats(0, 1.5),
    name=st.sampled_from(sorted(POLICIES)),
)
def test_no_policy_oversubscribes_a_node(seed: int, nodes: int, scarce: float, name: str) -> None:
    demands, roomy = problem(seed, nodes, steps=[1, 2, 4], jobs=(1, 12), spread=0.4)
    cores = {node: int(count * scarce) for node, count in roomy.items()}
    allocation = policy(name)(demands, cores)
    assert set(allocation) == {demand.name for demand in demands}
    assert all(used(demands, allocation)[node] <= cores[node] for demand in demands for node in demand.devices)
    for demand in demands:
        assert allocation[demand.name] == 0 or allocation[demand.name] >= demand.minimum
        assert demand.maximum is None or allocation[demand.name] <= demand.maximum


@given(seed=st.integers(0, 10_000), name=st.sampled_from(sorted(set(POLICIES) - {"fifo"})))
def test_every_job_gets_a_worker_if_the_cores_suffice(seed: int, name: str) -> None:
    demands, cores = problem(seed, nodes=3, steps=[1, 2, 4], jobs=(1, 12), spread=0.4)
    assert min(policy(name)(demands, cores).values()) >= 1


@given(seed=st.integers(0, 10_000), name=st.sampled_from(sorted(POLICIES)), order=st.randoms())
def test_the_allocation_does_not_depend_on_the_order_of_jobs_and_nodes(seed: int, name: str, order: object) -> None:
    demands, cores = problem(seed, nodes=3, steps=[1, 2, 4], jobs=(1, 12), spread=0.4)
    shuffled = list(demands)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    turned = dict(sorted(cores.items(), reverse=True))
    assert policy(name)(shuffled, turned) == policy(name)(demands, cores)


def test_the_last_jobs_wait_if_the_cores_do_not_suffice() -> None:
    demands = [Demand(f"job{number}", {"a": 2}, FAST, arrival=-number) for number in range(3)]
    assert PROPORTIONAL(demands, {"a": 5}) == {"job2": 1, "job1": 1, "job0": 0}


def test_a_step_that_does_not_fit_does_not_block_those_of_other_jobs() -> None:
    wide, narrow = Demand("wide", {"a": 4}, FAST, weight=100), Demand("narrow", {"a": 1}, SLOW)
    assert PROPORTIONAL([wide, narrow], {"a": 8}) == {"wide": 1, "narrow": 2}


def test_no_worker_is_given_without_a_speedup() -> None:
    assert PROPORTIONAL([Demand("slow", {"a": 2}, SLOW)], {"a": 64}) == {"slow": 2}


def test_a_job_over_two_nodes_is_limited_by_the_smaller() -> None:
    demands = [Demand("both", {"a": 1, "b": 1}, FAST), Demand("one", {"a": 1}, FAST)]
    assert PROPORTIONAL(demands, {"a": 16, "b": 3}) == {"both": 3, "one": 8}


def test_even_divides_cores_between_jobs_and_gpu_proportional_between_devices() -> None:
    demands = [Demand("wide", {"a": 4}, FAST), Demand("narrow", {"a": 1}, FAST)]
    assert policy("even")(demands, {"a": 16}) == {"wide": 2, "narrow": 8}
    assert policy("gpu-proportional")(demands, {"a": 15}) == {"wide": 3, "narrow": 3}


def test_static_gives_the_requested_workers_as_far_as_possible() -> None:
    demands = [Demand("first", {"a": 1}, FAST, requested=6), Demand("last", {"a": 1}, FAST, requested=6, arrival=1)]
    assert policy("static")(demands, {"a": 12}) == {"first": 6, "last": 6}
    assert policy("static")(demands, {"a": 11}) == {"first": 6, "last": 5}


def test_fifo_blocks_jobs_after_the_first_that_does_not_fit() -> None:
    asked = {"first": 4, "second": 6, "third": 1}
    demands = [Demand(name, {"a": 1}, FAST, requested=count, arrival=len(name)) for name, count in asked.items()]
    by_name = [Demand(d.name, d.devices, d.curve, requested=d.requested, arrival=i) for i, d in enumerate(demands)]
    assert policy("fifo")(by_name, {"a": 8}) == {"first": 4, "second": 0, "third": 0}


def test_the_published_variants_oversubscribe_nodes_and_proportional_does_not() -> None:
    over = dict.fromkeys(["waa-trim", "waa-fill", "proportional"], 0)
    for seed in range(200):
        demands, cores = problem(seed, nodes=2, steps=[1, 2, 4], jobs=(2, 10), spread=0.3)
        for each in (Trim(), Fill(), PROPORTIONAL):
            over[each.name] += any(n > cores[node] for node, n in used(demands, each(demands, cores)).items())
    assert over["waa-trim"] > 50
    assert over["waa-fill"] > 50
    assert over["proportional"] == 0


def test_trim_reduces_the_jobs_with_the_most_slack() -> None:
    # 3.5 and 2 workers are needed for each of their devices: 4 and 3 are given, then trimmed.
    demands = [Demand("less", {"a": 1}, Curve(350, 0.01)), Demand("more", {"a": 2}, Curve(200, 0.01))]
    assert Trim()(demands, {"a": 10}) == {"less": 4, "more": 3}
    assert Trim()(demands, {"a": 9}) == {"less": 4, "more": 2}


def test_fill_divides_abundant_cores_by_need_and_gives_scarce_ones_to_the_fastest() -> None:
    demands = [Demand("fast", {"a": 1}, Curve(1000, 0.008)), Demand("slow", {"a": 1}, Curve(100, 0.03))]
    assert Fill()(demands, {"a": 30}) == {"fast": 20, "slow": 10}
    assert Fill()(demands, {"a": 3}) == {"fast": 2, "slow": 1}


def test_an_allocation_within_budget_is_unchanged() -> None:
    class Fixed:
        name = "fixed"

        def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
            return {"a job": 3, "another": -2}

    demands = [Demand("a job", {"a": 2}, FAST), Demand("another", {"a": 1}, FAST)]
    assert WithinBudget(Fixed())(demands, {"a": 7}) == {"a job": 3, "another": 1}
    assert WithinBudget(Fixed())(demands, {"a": 6}) == {"a job": 2, "another": 1}


def test_the_error_about_an_unknown_policy_names_the_existing_ones() -> None:
    with pytest.raises(ValueError, match=r"no policy 'fare'.*proportional.*waa-fill"):
        policy("fare")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"devices": {}}, "needs a device on each node"),
        ({"devices": {"a": 0}}, "needs a device on each node"),
        ({"weight": math.nan}, "needs a positive weight"),
        ({"minimum": 0}, "at least 1"),
        ({"minimum": 4, "maximum": 2}, "below minimum"),
    ],
)
def test_an_invalid_demand_is_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=f"'a job'.*{says}"):
        Demand(**({"name": "a job", "devices": {"a": 1}, "curve": FAST} | wrong))  # type: ignore[arg-type]
