"""The actions of the scheduler when applications arrive, end, change or lose their node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloader.allocation.catalogue import POLICIES, policy
from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import (
    Action,
    Application,
    Cause,
    Launch,
    Mode,
    Node,
    Pause,
    Requeue,
    Resize,
    Spec,
    State,
)
from torchloader.scheduling.scheduler import Scheduler

HUNGRY = Curve(1000, 0.016)  # sixteen workers are enough
MODEST = Curve(100, 0.02)  # two are
ONE = {"a": Node(16, (0, 1, 2, 3))}


def queued(name: str, devices: Any = 1, curve: Curve = HUNGRY, **more: Any) -> Application:
    return Application(Spec(name, "resnet", devices, 64, 10_000, **more), curve=curve)


def running(name: str, workers: int, placement: dict[str, tuple[int, ...]], curve: Curve = HUNGRY, **more: Any) -> Any:
    spec = {key: more.pop(key) for key in ("weight", "minimum", "maximum", "arrival", "workers") if key in more}
    devices = sum(map(len, placement.values()))
    return replace(
        queued(name, devices, curve, **spec), state=State.RUNNING, workers=workers, placement=placement, **more
    )


def decide(*applications: Application, cause: Cause = Cause.ARRIVAL, now: float = 100, **how: Any) -> list[Action]:
    nodes = how.pop("nodes", ONE)
    scheduler = Scheduler(how.pop("policy", policy("proportional")), **{"headroom": 0.0, **how})
    return scheduler.decide(now, {each.spec.name: each for each in applications}, nodes, cause)


def test_an_application_starts_on_free_devices_with_the_workers_that_it_needs() -> None:
    assert decide(queued("new", devices=2, curve=MODEST)) == [Launch("new", {"a": (0, 1)}, 2, "arrival")]


def test_an_application_starts_on_the_node_with_the_fewest_free_devices_left() -> None:
    nodes = {"wide": Node(16, (0, 1, 2, 3)), "narrow": Node(16, (0, 1))}
    assert decide(queued("new", devices=2), nodes=nodes)[0] == Launch("new", {"narrow": (0, 1)}, 8, "arrival")


def test_an_application_starts_on_several_nodes_if_no_node_has_enough_devices() -> None:
    nodes = {"a": Node(8, (0, 1)), "b": Node(8, (0, 1, 2))}
    assert decide(queued("new", devices=4), nodes=nodes) == [Launch("new", {"a": (0,), "b": (0, 1, 2)}, 2, "arrival")]


def test_a_waiting_application_lets_others_start_before_it_for_a_limited_time() -> None:
    wide, narrow = queued("wide", devices=8), queued("narrow", arrival=1)
    assert [action.name for action in decide(wide, narrow, now=100)] == ["narrow"]
    assert decide(wide, narrow, now=10_000) == []
    assert decide(wide, narrow, now=100, patience=0.0) == []
    assert decide(wide, narrow, now=100, policy=policy("fifo")) == []


def test_an_application_waits_until_there_are_cores_for_its_minimum() -> None:
    assert decide(queued("new", devices=4, minimum=5)) == []


def test_a_new_job_is_started_after_the_resizes_that_release_its_cores() -> None:
    old, rich = running("old", 2, {"a": (0,)}), running("rich", 14, {"a": (1,)}, MODEST)
    assert decide(old, rich, queued("new")) == [
        Resize("rich", 14, 2, "arrival"),
        Resize("old", 2, 7, "arrival"),
        Launch("new", {"a": (2,)}, 7, "arrival"),
    ]


def test_devices_named_for_several_applications_are_shared() -> None:
    first = running("first", 16, {"a": (0,)})
    first = replace(first, spec=replace(first.spec, devices={"a": (0,)}))
    # Each computes half as fast, so eight workers are enough for each.
    assert decide(first, queued("second", {"a": (0,)})) == [
        Resize("first", 16, 8, "arrival"),
        Launch("second", {"a": (0,)}, 8, "arrival"),
    ]


def test_a_device_chosen_by_the_scheduler_is_not_shared() -> None:
    assert decide(running("first", 16, {"a": (0,)}), queued("second", {"a": (0,)})) == []


def test_an_application_waits_for_missing_devices() -> None:
    assert decide(queued("new", {"b": (0,)})) == []
    assert decide(queued("new", {"a": (9,)})) == []


@pytest.mark.parametrize(
    ("mode", "cause", "resizes"),
    [
        (Mode.NEVER, Cause.ARRIVAL, False),
        (Mode.NEVER, Cause.DEPARTURE, False),
        (Mode.ARRIVALS, Cause.ARRIVAL, True),
        (Mode.ARRIVALS, Cause.DEPARTURE, False),
        (Mode.ARRIVALS_AND_DEPARTURES, Cause.ARRIVAL, True),
        (Mode.ARRIVALS_AND_DEPARTURES, Cause.DEPARTURE, True),
    ],
)
def test_the_mode_determines_when_workers_are_reallocated(mode: Mode, cause: Cause, resizes: bool) -> None:
    actions = decide(running("old", 2, {"a": (0,)}), mode=mode, cause=cause)
    assert [type(action) for action in actions] == ([Resize] if resizes else [])


def test_new_applications_get_the_free_cores_without_reallocation() -> None:
    assert decide(running("old", 14, {"a": (0,)}), queued("new"), mode=Mode.NEVER) == [
        Launch("new", {"a": (1,)}, 2, "arrival")
    ]


@pytest.mark.parametrize(("cost", "moves"), [(0.0, True), (1.0, True), (400.0, False)])
def test_a_change_is_made_if_it_gains_more_than_it_costs(cost: float, moves: bool) -> None:
    unequal = running("much", 10, {"a": (0,)}), running("little", 6, {"a": (1,)})
    assert bool(decide(*unequal, cost=cost, cause=Cause.DEPARTURE)) == moves


def test_a_measured_cost_replaces_the_default() -> None:
    unequal = running("much", 10, {"a": (0,)}, cost=400.0), running("little", 6, {"a": (1,)}, cost=400.0)
    assert decide(*unequal, cost=0.0, cause=Cause.DEPARTURE) == []


def test_a_change_without_gain_is_not_made_even_without_cost() -> None:
    assert decide(running("rich", 9, {"a": (0,)}, MODEST), cause=Cause.DEPARTURE) == []


def test_free_cores_are_given_as_headroom() -> None:
    modest, hungry = queued("modest", curve=MODEST), queued("hungry", curve=Curve(1000, 0.010))
    assert [action.workers for action in decide(hungry, modest, headroom=0.5) if isinstance(action, Launch)] == [13, 3]
    assert [action.workers for action in decide(hungry, modest, headroom=0.0) if isinstance(action, Launch)] == [10, 2]


def test_headroom_does_not_justify_a_stop_or_taking_workers() -> None:
    enough, rich = running("enough", 2, {"a": (0,)}, MODEST), running("rich", 9, {"a": (1,)}, MODEST)
    assert decide(enough, rich, headroom=1.0, cost=5.0, cause=Cause.DEPARTURE) == []
    assert decide(enough, rich, headroom=1.0, cause=Cause.DEPARTURE) == [Resize("enough", 2, 4, "departure")]


def test_a_job_that_ends_soon_is_not_resized() -> None:
    soon = running("soon", 2, {"a": (0,)}, progress=9_990.0)
    assert decide(soon, cost=4.9, cause=Cause.DEPARTURE) == []
    assert decide(replace(soon, progress=0.0), cost=4.9, cause=Cause.DEPARTURE) == [Resize("soon", 2, 16, "departure")]


def test_no_application_is_resized_twice_within_the_interval() -> None:
    lately = running("old", 2, {"a": (0,)}, moved=95.0)
    scheduler = Scheduler(policy("proportional"), interval=10.0, headroom=0.0)
    assert scheduler.decide(100, {"old": lately}, ONE, Cause.DEPARTURE) == []
    assert scheduler.next_time(100, {"old": lately}) == 105
    assert scheduler.decide(105, {"old": lately}, ONE, Cause.DUE) == [Resize("old", 2, 16, "due")]
    assert scheduler.next_time(105, {"old": lately}) is None


def test_a_job_that_is_starting_keeps_its_cores() -> None:
    starting = replace(running("old", 15, {"a": (0,)}), state=State.STARTING)
    assert decide(starting, queued("new")) == [Launch("new", {"a": (1,)}, 1, "arrival")]


def test_applications_of_a_lost_node_are_requeued_and_start_on_others() -> None:
    both = running("both", 4, {"a": (0,), "gone": (0,)})
    assert decide(both, cause=Cause.LOST) == [
        Requeue("both", "node lost"),
        Launch("both", {"a": (0, 1)}, 8, "node lost"),
    ]


def test_the_last_job_is_paused_while_cores_are_missing() -> None:
    first = running("first", 8, {"a": (0, 1)}, minimum=4)
    last = running("last", 8, {"a": (2, 3)}, minimum=4, arrival=1)
    nodes = {"a": Node(10, (0, 1, 2, 3))}
    assert decide(first, last, nodes=nodes, cause=Cause.DRIFT) == [
        Pause("last", "drift"),
        Resize("first", 8, 5, "drift"),
    ]
    paused = replace(last, state=State.PAUSED, placement={}, workers=0)
    assert Launch("last", {"a": (2, 3)}, 4, "departure", state=State.RESUMING) in decide(
        first, paused, cause=Cause.DEPARTURE
    )


def test_a_job_that_a_user_paused_is_not_resumed() -> None:
    assert decide(replace(queued("held"), state=State.PAUSED, held=True)) == []


def test_an_application_without_a_curve_gets_the_requested_workers() -> None:
    assert decide(replace(queued("new", workers=5), curve=None)) == [Launch("new", {"a": (0,)}, 5, "arrival")]


def test_workers_that_do_not_fit_are_on_another_node_with_anywhere() -> None:
    nodes = {"a": Node(4, (0,)), "b": Node(16, ())}
    assert decide(queued("new"), nodes=nodes, anywhere=True) == [
        Launch("new", {"a": (0,)}, 16, "arrival", {"a": {"b": 12}})
    ]


def test_workers_move_to_another_node_to_make_space_for_a_new_application() -> None:
    nodes = {"a": Node(4, (0, 1)), "b": Node(16, ())}
    old = running("old", 4, {"a": (0,)}, Curve(1000, 0.004))
    assert decide(old, queued("new", arrival=1, curve=MODEST, minimum=2), nodes=nodes, anywhere=True) == [
        Resize("old", 4, 4, "arrival", {"a": {"b": 2}}),
        Launch("new", {"a": (1,)}, 2, "arrival"),
    ]


def carried_out(actions: list[Action], applications: Mapping[str, Application]) -> dict[str, Application]:
    """Return the applications after the actions; check that each action is possible in this order."""
    after = dict(applications)
    for action in actions:
        each = after[action.name]
        match action:
            case Requeue():
                after[action.name] = replace(each, state=State.QUEUED, workers=0, placement={}, away={})
            case Pause():
                after[action.name] = replace(each, state=State.PAUSED, workers=0, placement={}, away={})
            case Resize():
                assert each.state is State.RUNNING
                assert each.workers == action.before
                after[action.name] = replace(each, workers=action.workers, away=action.away)
            case Launch():
                assert each.waits
                place = {"placement": action.placement, "away": action.away}
                after[action.name] = replace(each, state=State.RUNNING, workers=action.workers, **place)
    return after


@given(
    seeds=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 24), st.integers(1, 3)), min_size=1, max_size=12),
    ends=st.sets(st.integers(0, 11)),
    lost=st.booleans(),
    name=st.sampled_from(sorted(POLICIES)),
    mode=st.sampled_from(list(Mode)),
    weigh=st.booleans(),
    anywhere=st.booleans(),
)
def test_no_event_oversubscribes_a_node(
    seeds: list[tuple[int, int, int]], ends: set[int], lost: bool, name: str, mode: Mode, weigh: bool, anywhere: bool
) -> None:
    nodes = {"a": Node(20, (0, 1, 2, 3)), "b": Node(12, (0, 1, 2, 3)), "c": Node(7, (0, 1))}
    scheduler = Scheduler(policy(name), mode, weigh=weigh, anywhere=anywhere)
    everybody: dict[str, Application] = {}

    def happen(cause: Cause, now: float) -> None:
        nonlocal everybody
        actions = scheduler.decide(now, everybody, nodes, cause)
        assert actions == scheduler.decide(now, dict(reversed(everybody.items())), nodes, cause)
        everybody = carried_out(actions, everybody)
        for node, has in nodes.items():
            holders = [each for each in everybody.values() if each.holds and node in each.placement]
            assert sum(each.cores.get(node, 0) for each in everybody.values()) <= has.cores
            devices = [device for each in holders for device in each.placement[node]]
            assert len(set(devices)) == len(devices)
        assert all(each.workers >= each.spec.minimum for each in everybody.values() if each.holds)

    for number, (devices, needs, minimum) in enumerate(seeds):
        new = queued(f"job{number}", devices, Curve(100, needs / 100), minimum=minimum, workers=devices * minimum)
        everybody[new.spec.name] = replace(new, spec=replace(new.spec, arrival=float(number)))
        happen(Cause.ARRIVAL, number)
        if number in ends and everybody["job0"].holds:
            everybody["job0"] = replace(everybody["job0"], state=State.FINISHED, workers=0, placement={}, away={})
            happen(Cause.DEPARTURE, number)
    if lost:
        del nodes["a"]
        happen(Cause.LOST, 100)
        assert not any("a" in each.cores for each in everybody.values())
