"""The orders that decide which jobs hold devices: by arrival, attained service, or remaining time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchloader_oracle import replayed

from torchloader.allocation.catalogue import policy
from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import (
    Action,
    Application,
    Cause,
    Launch,
    Mode,
    Node,
    Pause,
    Promote,
    Requeue,
    Spec,
    State,
)
from torchloader.scheduling.log import Records
from torchloader.scheduling.orders import ORDERS, Order, Tiresias, order
from torchloader.scheduling.scheduler import Scheduler
from torchloader.simulation.simulator import simulate
from torchloader.simulation.workload import Job

TWO = {"a": Node(8, (0, 1))}
LAS = Tiresias(thresholds=(100.0,), promote=4.0)
SRTF = order("srtf")


def queued(name: str, devices: Any = 1, **more: Any) -> Application:
    return Application(Spec(name, "resnet", devices, 10, 1000, **more), curve=Curve(100, 0.01))


def running(name: str, placement: dict[str, tuple[int, ...]], executed: float, **more: Any) -> Application:
    """Return a job that runs since time 0 and had held its devices for `executed` seconds before."""
    size = sum(map(len, placement.values()))
    return replace(
        queued(name, size), state=State.RUNNING, workers=1, placement=placement, began=0.0, executed=executed, **more
    )


def paused(name: str, devices: int, executed: float, since: float = 0.0) -> Application:
    return replace(queued(name, devices), state=State.PAUSED, began=-executed, executed=executed, since=since)


def decide(order: Order, *applications: Application, now: float = 0.0, nodes: Any = TWO) -> list[Action]:
    scheduler = Scheduler(policy("proportional"), order=order, headroom=0.0)
    return scheduler.decide(now, {each.spec.name: each for each in applications}, nodes, Cause.ARRIVAL)


def job(name: str, arrival: float, seconds: float, devices: int = 1) -> Job:
    """Return a job that takes this number of seconds and never waits for data."""
    return Job(Spec(name, "resnet", devices, 10 * devices, int(seconds * 10), arrival=arrival), Curve(100, 0.001))


def test_no_job_is_preempted_in_the_order_of_arrival() -> None:
    assert decide(order("arrival"), running("old", {"a": (0, 1)}, 1e6), queued("new")) == []


def test_the_job_with_most_service_is_preempted_before_the_other_starts() -> None:
    much, little = running("much", {"a": (0,)}, 300.0), running("little", {"a": (1,)}, 50.0)
    assert decide(LAS, much, little, queued("new")) == [Pause("much", "it yields its devices")]
    gone = replace(much, state=State.PAUSED, placement={}, workers=0)
    assert Launch("new", {"a": (0,)}, 1, "arrival") in decide(LAS, gone, little, queued("new"))


def test_no_job_is_preempted_while_another_one_is_pausing() -> None:
    leaves = replace(running("much", {"a": (0,)}, 300.0), state=State.PAUSING)
    other = running("other", {"a": (1,)}, 300.0)
    assert not any(isinstance(action, Pause) for action in decide(LAS, leaves, other, queued("new")))


def test_no_job_is_preempted_if_a_device_is_free_or_if_that_does_not_suffice() -> None:
    much = running("much", {"a": (0,)}, 300.0)
    assert Launch("new", {"a": (1,)}, 1, "arrival") in decide(LAS, much, queued("new"))
    young = running("young", {"a": (1,)}, 50.0)
    assert decide(LAS, much, young, queued("wide", 2)) == []


def test_the_last_jobs_in_the_order_are_preempted() -> None:
    wide, first = running("1 wide", {"a": (0, 1)}, 50.0), running("2 first", {"a": (2,)}, 100.0)
    second, last = running("3 second", {"a": (3,)}, 100.0), running("4 last", {"b": (0,)}, 100.0)
    nodes = {"a": Node(8, (0, 1, 2, 3)), "b": Node(8, (0,))}
    actions = decide(LAS, wide, first, second, last, queued("new", 4), nodes=nodes)
    assert [action.name for action in actions if isinstance(action, Pause)] == ["1 wide", "3 second", "4 last"]


def test_service_is_the_number_of_devices_times_the_time() -> None:
    wide, narrow = running("wide", {"a": (0, 1)}, 60.0), running("narrow", {"b": (0,)}, 60.0)
    nodes = {"a": Node(8, (0, 1)), "b": Node(8, (0,))}
    assert decide(LAS, wide, narrow, queued("new"), nodes=nodes) == [Pause("wide", "it yields its devices")]


def test_no_job_is_preempted_by_a_new_one_of_the_same_queue() -> None:
    assert decide(LAS, running("a", {"a": (0, 1)}, 0.0), queued("new", arrival=-50.0)) == []


def test_a_job_that_has_waited_long_enough_is_promoted() -> None:
    first, second = running("first", {"a": (0,)}, 300.0), running("second", {"a": (1,)}, 300.0)
    waits = replace(paused("waits", 1, executed=150.0), began=900.0)
    assert decide(LAS, first, second, waits, now=599.0) == []
    promoted, pause = decide(LAS, first, second, waits, now=600.0)
    assert promoted == Promote("waits", "it waited for too long")
    assert isinstance(pause, Pause)
    assert decide(replace(LAS, promote=math.inf), first, second, waits, now=1e9) == []


def test_the_next_time_is_that_of_a_change_of_queue_or_a_promotion() -> None:
    scheduler = Scheduler(policy("even"), order=LAS)
    runs, waits = running("runs", {"a": (0, 1)}, 10.0), paused("waits", 1, executed=100.0)
    assert scheduler.next_time(0.0, {"runs": runs}) is None
    assert scheduler.next_time(0.0, {"runs": runs, "waits": waits}) == 40.0
    assert scheduler.next_time(40.0, {"runs": runs, "waits": waits}) == 400.0


def test_the_job_with_the_least_remaining_time_holds_the_device() -> None:
    long, short = running("long", {"a": (0, 1)}, 0.0), replace(queued("short", 2), progress=900.0)
    assert decide(SRTF, long, short) == [Pause("long", "it yields its devices")]
    assert decide(SRTF, replace(long, progress=950.0), short) == []


def test_a_job_with_unknown_throughput_counts_as_short() -> None:
    known, new = running("known", {"a": (0, 1)}, 0.0, progress=990.0), replace(queued("new", 2), curve=None)
    assert decide(SRTF, known, new) == [Pause("known", "it yields its devices")]


@pytest.mark.parametrize("thresholds", [(0.0,), (2.0, 1.0), (1.0, 1.0)])
def test_thresholds_that_do_not_increase_are_refused(thresholds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must rise"):
        Tiresias(thresholds)


def test_the_error_about_an_unknown_order_names_the_existing_ones() -> None:
    with pytest.raises(ValueError, match="no order 'lifo'; the orders are arrival, srtf, tiresias"):
        order("lifo")


def test_service_is_computed_from_events_and_reset_by_a_promotion() -> None:
    records = Records()
    records.submit(Spec("a", "resnet", 2, 10, 1000), 0.0)
    for state, time in ((State.STARTING, 5.0), (State.RUNNING, 6.0), (State.PAUSING, 26.0), (State.PAUSED, 30.0)):
        records.change("a", state, time, "test", workers=1, placement={"n": (0, 1)})
    assert (records["a"].began, records["a"].service(1e3)) == (5.0, 50.0)
    records.change("a", State.PAUSED, 90.0, "test", executed=0.0)
    records.change("a", State.RESUMING, 100.0, "test", workers=1, placement={"n": (0, 1)})
    assert (records["a"].began, records["a"].service(110.0)) == (5.0, 20.0)


def test_a_short_job_does_not_wait_behind_a_long_one() -> None:
    one = {"n": Node(4, (0,))}
    jobs = [job("long", 0, 1000), job("short", 300, 50)]
    by_arrival = simulate(jobs, one, Scheduler(policy("even")))
    las = simulate(jobs, one, Scheduler(policy("even"), order=LAS), start=10)
    assert [each.finished for each in by_arrival.jobs] == [1000, 1050]
    # The long one yields at 300, and resumes at 360: both starts take 10 s, and its own resumption too.
    assert [each.finished for each in las.jobs] == pytest.approx([1080, 360])
    assert (las.jobs[0].paused, las.jobs[0].held) == pytest.approx((60, 1020))
    assert las.busy == pytest.approx(1050 / 1080)


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.integers(0, 400), st.integers(1, 300), st.sampled_from((1, 1, 2, 4))), min_size=1, max_size=14
    ),
    name=st.sampled_from(sorted(ORDERS)),
    shares=st.sampled_from(("proportional", "even", "gpu-proportional", "fifo", "waa-fill")),
    mode=st.sampled_from(list(Mode)),
    start=st.sampled_from((0.0, 7.0)),
)
def test_every_job_ends_and_no_device_is_held_by_two_jobs(
    shapes: list[tuple[int, int, int]], name: str, shares: str, mode: Mode, start: float
) -> None:
    nodes = {"a": Node(6, (0, 1)), "b": Node(5, (0, 1))}
    jobs = [job(f"job{place}", *shape) for place, shape in enumerate(shapes)]
    by = Tiresias((60.0, 200.0), 2.0) if name == "tiresias" else order(name)
    result = simulate(jobs, nodes, Scheduler(policy(shares), mode, by), start=start)
    assert len(result.jobs) == len(jobs)
    for each in result.jobs:
        assert each.held >= each.devices * each.shortest * (1 - 1e-9)
    assert sum(1 for _ in replayed(result, nodes)) > 0


def test_a_resumed_job_continues_where_it_stopped() -> None:
    one = {"n": Node(4, (0,))}
    result = simulate([job("long", 0, 1000), job("short", 300, 50)], one, Scheduler(policy("even"), order=SRTF))
    assert [each.finished for each in result.jobs] == pytest.approx([1050, 350])
    assert [event.after for event in result.events if event.application == "long"].count(State.RESUMING) == 1


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_jobs_wait_without_nodes_and_are_requeued_if_their_node_is_lost(name: str) -> None:
    lost, waits = running("lost", {"a": (0,)}, 100.0), paused("waits", 1, executed=1.0)
    assert decide(order(name), queued("new"), waits, nodes={}, now=2.0) == []
    assert [type(action) for action in decide(order(name), lost, nodes={}, now=2.0)] == [Requeue]


@settings(max_examples=200, deadline=None)
@given(
    held=st.lists(st.tuples(st.sampled_from((1, 2, 4)), st.integers(0, 400)), max_size=8),
    waits=st.lists(st.tuples(st.sampled_from((1, 2, 4, 8)), st.integers(0, 400)), min_size=1, max_size=4),
)
def test_a_job_is_preempted_only_for_an_earlier_one_that_then_starts(
    held: list[tuple[int, int]], waits: list[tuple[int, int]]
) -> None:
    nodes = {"a": Node(8, (0, 1, 2, 3)), "b": Node(8, (0, 1, 2, 3))}
    free = [(name, device) for name, node in nodes.items() for device in node.devices]
    everybody: dict[str, Application] = {}
    for place, (size, executed) in enumerate(held):
        mine, free = free[:size], free[size:]
        if len(mine) == size:
            placement = {node: tuple(device for name, device in mine if name == node) for node in dict(mine)}
            everybody[f"held{place}"] = running(f"held{place}", placement, float(executed))
    for place, (size, executed) in enumerate(waits):
        everybody[f"waits{place}"] = paused(f"waits{place}", size, float(executed))
    scheduler = Scheduler(policy("even"), order=LAS)
    before = [turn.application.spec.name for turn in LAS.ranked(0.0, everybody.values(), nodes)]
    actions = scheduler.decide(0.0, everybody, nodes, Cause.ARRIVAL)
    gone = [action.name for action in actions if isinstance(action, Pause)]
    for name in gone:
        everybody[name] = replace(everybody[name], state=State.PAUSED, placement={}, workers=0)
    if gone:
        actions = scheduler.decide(0.0, everybody, nodes, Cause.DEPARTURE)
        assert not any(isinstance(action, Pause) for action in actions)
        begun = [action.name for action in actions if isinstance(action, Launch)]
        assert min(map(before.index, begun)) < min(map(before.index, gone))
