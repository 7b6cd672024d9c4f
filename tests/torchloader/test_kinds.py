"""Kinds of devices: where jobs are placed, and how fast they train there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchloader_oracle import replayed

from torchloader.allocation.catalogue import policy
from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import Application, Node, Spec, State
from torchloader.scheduling.log import Records, encoded
from torchloader.scheduling.orders import ORDERS, order
from torchloader.scheduling.placement import Devices, fastest_first
from torchloader.scheduling.scheduler import Scheduler
from torchloader.simulation.result import Result
from torchloader.simulation.simulator import simulate
from torchloader.simulation.workload import Job

FAST, SLOW = Node(8, (0, 1), kind="v100"), Node(8, (0, 1), kind="k80")
BOTH = {"fast": FAST, "slow": SLOW}
SPEEDS = {"v100": 1.0, "k80": 0.25}


def spec(name: str = "job", devices: Any = 1, **more: Any) -> Spec:
    return Spec(name, "resnet", devices, 10, 1000, **more)


def job(name: str, arrival: float, seconds: float, devices: int = 1, **speeds: float) -> Job:
    """Return a job that takes this number of seconds on devices of speed 1, and never waits for data."""
    made = Spec(name, "resnet", devices, 10 * devices, int(seconds * 10), arrival=arrival, speeds=speeds)
    return Job(made, Curve(100, 0.001))


def run(jobs: list[Job], nodes: dict[str, Node], by: str = "arrival", **more: Any) -> Result:
    return simulate(jobs, nodes, Scheduler(policy("proportional"), order=order(by)), **more)


def test_a_job_gets_only_devices_of_the_kinds_that_it_names() -> None:
    only = Application(spec(devices=2, speeds={"k80": 1.0}))
    assert Devices(BOTH).find(only) == {"slow": (0, 1)}
    assert Devices({"fast": FAST}).find(only) is None


def test_all_devices_of_a_job_are_of_one_kind() -> None:
    nodes = {"a": FAST, "b": SLOW, "c": Node(8, (0,), kind="v100")}
    assert Devices(nodes).find(Application(spec(devices=3))) == {"a": (0, 1), "c": (0,)}
    assert Devices(nodes).find(Application(spec(devices=4))) is None


def test_a_job_that_names_devices_of_two_kinds_gets_them_only_if_it_is_equally_fast_on_both() -> None:
    named = {"fast": (0,), "slow": (0,)}
    assert Devices(BOTH).find(Application(spec(devices=named))) == named
    assert Devices(BOTH).find(Application(spec(devices=named, speeds=SPEEDS))) is None


def test_kinds_that_are_equally_fast_are_equally_preferred() -> None:
    kinds = ("a100", "k80", "p100", "v100")
    assert fastest_first(spec(speeds={"k80": 1, "p100": 3, "v100": 3}), kinds) == (("p100", "v100"), ("k80",))
    assert fastest_first(spec(), kinds) == (kinds,)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf"), float("nan")])
def test_a_speed_that_is_not_positive_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="application 'job': its speed on 'k80' must be positive, not"):
        spec(speeds={"v100": 1.0, "k80": speed})


@pytest.mark.parametrize(("nodes", "seconds"), [({"n": FAST}, 100), ({"n": SLOW}, 400), ({"n": Node(8, (0,))}, 100)])
def test_a_job_trains_at_the_speed_of_its_devices(nodes: dict[str, Node], seconds: float) -> None:
    result = run([job("a", 0, 100, **SPEEDS)], nodes)
    assert result.makespan == pytest.approx(seconds)
    assert (result.busy, result.lost_device_hours) == pytest.approx((1, 0))


def test_loading_is_not_slower_on_slower_devices() -> None:
    nodes = {"n": Node(1, (0,), kind="k80")}
    slow = Job(spec(speeds={"k80": 0.5}, devices=1), Curve(ceiling=100, service=0.02))  # a core loads 50 a second
    assert run([slow], nodes).makespan == pytest.approx(1000 * 10 / 50)


@pytest.mark.parametrize("name", ["arrival", "srtf", "tiresias"])
def test_the_first_job_gets_the_fastest_kind_that_is_free(name: str) -> None:
    nodes = {"a": Node(4, (0,), kind="k80"), "b": Node(4, (0,), kind="v100")}
    first, second = run([job("1", 0, 100, **SPEEDS), job("2", 1, 100, **SPEEDS)], nodes, name).jobs
    assert (first.completion, second.completion) == pytest.approx((100, 400))


def test_a_job_that_waits_for_one_kind_does_not_keep_others_from_another() -> None:
    nodes = {"a": Node(4, (0, 1), kind="v100"), "b": Node(4, (0,), kind="k80")}
    jobs = [job("runs", 0, 9000, v100=1), job("waits", 1, 10, 2, v100=1), job("other", 5000, 10, k80=1)]
    assert run(jobs, nodes).jobs[2].completion == pytest.approx(10)


def test_the_error_about_a_job_that_can_never_start_names_the_kinds() -> None:
    with pytest.raises(ValueError, match=r"wants 1 device\(s\) of kind a100 .* nodes have fast: 2 v100 with 8 cores"):
        run([job("a", 0, 100, a100=1)], BOTH)


def test_the_log_tells_the_kind_and_the_time_on_each() -> None:
    written = []
    records = Records(lambda event: written.append(json.loads(encoded(event))))
    records.submit(spec(speeds=SPEEDS), 0.0)
    held = {"workers": 1, "placement": {"slow": (0,)}}
    records.change("job", State.STARTING, 5.0, "test", kind="k80", **held)
    records.change("job", State.RUNNING, 10.0, "test")
    records.change("job", State.PAUSING, 20.0, "test")
    records.change("job", State.PAUSED, 25.0, "test")
    records.change("job", State.RESUMING, 30.0, "test", kind="v100", **held)
    assert written[1]["details"]["kind"] == "k80"
    assert (records["job"].kind, records["job"].executed_on) == ("v100", {"k80": 20.0})
    assert (records["job"].seconds_on("v100", 37.0), records["job"].seconds_on("k80", 37.0)) == (7.0, 20.0)


def test_a_curve_is_predicted_for_another_kind() -> None:
    known = Application(spec(speeds=SPEEDS), curve=Curve(ceiling=100, service=0.01))
    assert known.expected("k80") == Curve(ceiling=25, service=0.01)
    assert known.expected("") == known.curve
    assert Application(spec(speeds=SPEEDS, workers=4)).expected("k80").enough(at_most=9) == 4


@settings(max_examples=80, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(
            st.integers(0, 400),
            st.integers(1, 300),
            st.sampled_from((1, 1, 2, 4)),
            st.sampled_from(({}, SPEEDS, {"v100": 1.0}, {"k80": 2.0})),
        ),
        min_size=1,
        max_size=12,
    ),
    name=st.sampled_from(sorted(ORDERS)),
    start=st.sampled_from((0.0, 7.0)),
)
def test_every_job_ends_on_devices_of_one_allowed_kind_that_no_other_job_holds(
    shapes: list[tuple[int, int, int, dict[str, float]]], name: str, start: float
) -> None:
    nodes = {
        "a": Node(6, (0, 1), kind="v100"),
        "b": Node(5, (0, 1), kind="k80"),
        "c": Node(5, (0, 1), kind="k80"),
        "d": Node(4, (0, 1), kind="v100"),
    }
    jobs = [job(f"job{place}", *shape[:3], **shape[3]) for place, shape in enumerate(shapes)]
    result = run(jobs, nodes, name, start=start)
    assert len(result.jobs) == len(jobs)
    for records in replayed(result, nodes, counts_cores=False):
        for each in records.values():
            there = {nodes[node].kind for node in each.placement}
            assert there <= {each.kind}
            assert not there or each.spec.runs_on(each.kind)


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_one_kind_with_a_name_is_served_as_one_without(name: str) -> None:
    jobs = [job(str(number), 100 * number, 700 + 300 * (number % 3), 1 + number % 2) for number in range(9)]
    named, plain = (run(jobs, {"n": Node(8, (0, 1), kind=kind)}, name, start=5) for kind in ("v100", ""))
    assert named.jobs == plain.jobs
