"""The placement of loading workers that may be on any node."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from torchloader.scheduling.application import Need, names, spread

NODES = ("a", "b", "c")


def test_workers_are_on_the_node_of_their_devices_if_it_has_cores() -> None:
    assert spread([Need("job", "a", workers=8, least=1)], {"a": 8, "b": 8}) == {"job": {}}


def test_workers_that_do_not_fit_are_on_the_node_with_the_most_free_cores() -> None:
    needs = [Need("job", "a", workers=12, least=1)]
    assert spread(needs, {"a": 4, "b": 5, "c": 6}) == {"job": {"a": {"c": 6, "b": 2}}}


def test_each_job_has_its_minimum_on_its_node_before_another_gets_more() -> None:
    needs = [Need("first", "a", workers=4, least=1), Need("second", "a", workers=2, least=2)]
    assert spread(needs, {"a": 4, "b": 4}) == {"first": {"a": {"b": 2}}, "second": {}}


def test_workers_on_another_node_stay_there() -> None:
    needs = [Need("job", "a", workers=6, least=1, before={"b": 2})]
    assert spread(needs, {"a": 4, "b": 3, "c": 20}) == {"job": {"a": {"b": 2}}}


def test_workers_return_if_their_node_has_cores_again() -> None:
    assert spread([Need("job", "a", workers=6, least=1, before={"b": 2})], {"a": 8, "b": 8}) == {"job": {}}


def test_workers_that_cannot_be_moved_count_on_their_current_node() -> None:
    needs = [
        Need("fixed", "a", workers=4, least=1, before={"b": 3}, fixed=True),
        Need("other", "b", workers=4, least=1),
    ]
    assert spread(needs, {"a": 3, "b": 5}) == {"fixed": {"a": {"b": 3}}, "other": {"b": {"a": 2}}}


def test_workers_are_on_the_node_of_their_devices_if_no_node_has_cores() -> None:
    assert spread([Need("job", "a", workers=9, least=9)], {"a": 4, "b": 0}) == {"job": {}}


def test_names_lists_the_node_of_each_worker_on_another_node() -> None:
    assert names({"a": {"c": 1, "b": 2}}, "a") == ("b", "b", "c")
    assert names({"a": {"c": 1}}, "b") == ()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(NODES),
            st.integers(1, 9),
            st.integers(1, 3),
            st.dictionaries(st.sampled_from(NODES), st.integers(1, 4)),
        ),
        max_size=6,
    ),
    st.fixed_dictionaries({node: st.integers(0, 20) for node in NODES}),
)
def test_no_node_has_more_workers_than_cores_if_the_total_suffices(
    wanted: list[tuple[str, int, int, dict[str, int]]], cores: dict[str, int]
) -> None:
    needs = [
        Need(str(place), node, workers, min(least, workers), {other: n for other, n in before.items() if other != node})
        for place, (node, workers, least, before) in enumerate(wanted)
    ]
    found = spread(needs, cores)
    used: Counter[str] = Counter()
    for need in needs:
        others = found[need.name].get(need.node, {})
        assert sum(others.values()) <= need.workers - need.least
        assert need.node not in others
        used.update({need.node: need.workers - sum(others.values()), **others})
    least = Counter[str]()
    for need in needs:
        least[need.node] += need.least
    if all(least[node] <= cores[node] for node in NODES) and sum(used.values()) <= sum(cores.values()):
        assert all(used[node] <= cores[node] for node in NODES)
