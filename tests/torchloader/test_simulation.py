"""The simulator, which applies the scheduler to simulated events."""

from __future__ import annotations

import csv
import functools
import json
from pathlib import Path

import pytest
from torchloader_oracle import replayed

from torchloader.allocation.catalogue import policy
from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import Mode, Node, Spec, State
from torchloader.scheduling.log import read, replay
from torchloader.scheduling.scheduler import Scheduler
from torchloader.simulation.result import JobResult, Result
from torchloader.simulation.simulator import simulate
from torchloader.simulation.workload import Job, mistaken, synthetic

SEEDS = range(10)
NODES = {f"node{number}": Node(24, (0, 1, 2, 3)) for number in range(4)}
OURS = Scheduler(policy("proportional"))


def job(name: str, arrival: float = 0.0, devices: int = 1, needs: float = 8.0, seconds: float = 100.0) -> Job:
    """Return a job that takes `seconds` with at least `needs` workers per device."""
    batch = 10 * devices
    return Job(Spec(name, "resnet", devices, batch, int(seconds * 10), arrival=arrival), Curve(100, needs / 100))


@functools.cache
def contended(name: str, seed: int) -> Result:
    """Simulate a hundred jobs on 16 devices and 96 cores, with 1.5 times the work that these can do without waits."""
    published = name.startswith("waa")
    stop = 20.0 if published else 0.0
    scheduler = Scheduler(policy(name), cost=stop, weigh=not published)
    return simulate(synthetic(100, seed, devices=16, load=1.5), NODES, scheduler, stop=stop)


def test_a_single_job_takes_the_time_of_its_curve() -> None:
    alone = simulate([job("a", needs=8)], {"n": Node(4, (0,))}, OURS)
    assert alone.makespan == pytest.approx(200)
    assert alone.busy == pytest.approx(0.5)


def test_a_job_has_its_requested_workers_until_its_curve_is_measured() -> None:
    scheduler = Scheduler(policy("proportional"), headroom=0.0)
    alone = simulate([job("a", needs=8)], {"n": Node(8, (0,))}, scheduler, start=5, learn=10)
    assert [(moment.time, moment.workers) for moment in alone.moments if moment.throughput] == [(5, 1), (15, 8)]


def test_workers_are_reallocated_when_a_job_arrives_and_ends() -> None:
    both = simulate([job("a", needs=12), job("b", arrival=50, needs=12, seconds=25)], {"n": Node(12, (0, 1))}, OURS)
    assert [(moment.time, moment.application, moment.workers) for moment in both.moments] == [
        (0, "a", 12),
        (50, "a", 6),
        (50, "b", 6),
        (100, "b", 0),
        (100, "a", 12),
        (125, "a", 0),
    ]


def test_workers_are_not_moved_without_reallocation() -> None:
    kept = Scheduler(policy("proportional"), Mode.NEVER)
    both = simulate([job("a", needs=12), job("b", arrival=50, needs=12)], {"n": Node(12, (0, 1))}, kept)
    # There is no core for b until a is done.
    assert [each.started for each in both.jobs] == [0, 100]
    assert both.jobs[0].resizes == 0


def test_the_cost_of_a_stop_is_added_to_the_time_of_the_job() -> None:
    jobs = [job("a", needs=12), job("b", arrival=50, needs=12, seconds=25)]
    stopped = simulate(jobs, {"n": Node(12, (0, 1))}, Scheduler(policy("proportional"), weigh=False), stop=5)
    assert stopped.jobs[0].resizes == 2
    assert stopped.jobs[0].stopped == 10
    assert stopped.jobs[0].finished == pytest.approx(100 + (100 - 50 - 22.5) + 5)


def test_devices_named_for_two_jobs_alternate_between_them() -> None:
    spec = Spec("a", "resnet", {"n": (0,)}, 10, 1000)
    two = [Job(spec, Curve(100, 0.01)), Job(Spec("b", "resnet", {"n": (0,)}, 10, 1000), Curve(100, 0.01))]
    assert simulate(two, {"n": Node(8, (0,))}, OURS).makespan == pytest.approx(200)


def test_the_error_names_a_job_that_can_never_start() -> None:
    with pytest.raises(ValueError, match=r"'wide' can never start: it wants 3 device.*n: 2 with 8 cores"):
        simulate([job("fine"), job("wide", devices=3)], {"n": Node(8, (0, 1))}, OURS)


@pytest.mark.parametrize("name", ["proportional", "waa-fill"])
def test_equal_simulations_have_equal_results(name: str) -> None:
    contended.cache_clear()
    first = contended(name, 0)
    contended.cache_clear()
    assert contended(name, 0) == first


@pytest.mark.parametrize("name", ["proportional", "even", "waa-fill"])
def test_every_job_does_exactly_its_work(name: str) -> None:
    result = contended(name, 1)
    done = dict.fromkeys((each.name for each in result.jobs), 0.0)
    rates: dict[str, tuple[float, float]] = {}
    for moment in result.moments:
        since, rate = rates.get(moment.application, (moment.time, 0.0))
        done[moment.application] += rate * (moment.time - since)
        rates[moment.application] = moment.time, moment.throughput
    for each in result.jobs:
        assert done[each.name] == pytest.approx(each.samples, rel=1e-6)
        assert each.finished >= each.started + each.shortest * (1 - 1e-9)


@pytest.mark.parametrize("name", ["proportional", "even", "waa-fill"])
def test_no_core_and_no_device_is_used_by_two_jobs(name: str) -> None:
    assert sum(1 for _ in replayed(contended(name, 2), NODES)) > 100


@pytest.mark.parametrize("seed", SEEDS)
def test_the_proportional_policy_is_better_than_an_even_split(seed: int) -> None:
    ours, even = contended("proportional", seed), contended("even", seed)
    assert ours.mean_completion < even.mean_completion
    assert ours.makespan < even.makespan


def test_the_proportional_policy_exceeds_the_target_over_the_published_one() -> None:
    pairs = [(contended("proportional", seed), contended("waa-fill", seed)) for seed in SEEDS]
    shorter = [1 - ours.mean_completion / published.mean_completion for ours, published in pairs]
    sooner = [1 - ours.makespan / published.makespan for ours, published in pairs]
    assert sum(shorter) / len(shorter) >= 0.08
    assert sum(sooner) / len(sooner) >= 0.04


def test_finish_time_fairness_compares_with_an_equal_share_of_the_cluster() -> None:
    alone = JobResult("alone", "", 2, 0.0, 0.0, 100.0, 100.0, 1, 0, 0.0, held=200.0, worked=200.0)
    late = JobResult("late", "", 2, 200.0, 300.0, 400.0, 100.0, 1, 0, 0.0, held=200.0, worked=200.0)
    first = JobResult("first", "", 2, 200.0, 200.0, 300.0, 100.0, 1, 0, 0.0, held=200.0, worked=200.0)
    result = Result("fifo", [alone, first, late], (), ())
    # `first` has both devices for as long as there are two jobs; `late` waits, and half of its time there are two.
    assert result.unfairness(devices=2) == pytest.approx([1.0, 0.5, 200 / 150])


def test_device_hours_are_lost_while_devices_wait_for_data() -> None:
    waits = JobResult("waits", "", 4, 0.0, 0.0, 7200.0, 3600.0, 1, 0, 0.0, held=28800.0, worked=14400.0)
    assert Result("even", [waits], (), ()).lost_device_hours == pytest.approx(4.0)


def test_results_are_written_as_tables_and_as_the_log_of_a_live_run(tmp_path: Path) -> None:
    result = simulate([job("a"), job("b", arrival=5)], {"n": Node(8, (0, 1))}, OURS)
    result.write(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["makespan_seconds"] == result.makespan
    with (tmp_path / "out" / "jobs.csv").open() as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["a", "b"]
    with (tmp_path / "out" / "workers.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(result.moments)
    assert read(tmp_path / "out" / "events.jsonl") == list(result.events)
    assert {each.state for each in replay(tmp_path / "out" / "events.jsonl").values()} == {State.FINISHED}


def test_workloads_are_equal_only_with_the_same_seed() -> None:
    assert synthetic(20, 1, devices=16) == synthetic(20, 1, devices=16)
    assert synthetic(20, 1, devices=16) != synthetic(20, 2, devices=16)


def test_wrong_curves_cost_time_but_no_work() -> None:
    jobs = synthetic(60, 3, devices=16)
    wrong = simulate(mistaken(jobs, 1.0, seed=1), NODES, OURS)
    assert wrong.mean_completion > simulate(jobs, NODES, OURS).mean_completion
    assert [each.samples for each in wrong.jobs] == [job.spec.iterations * job.spec.batch for job in jobs]
