"""The metrics of process groups and of dictionaries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from measured import measuring, newest, wait_until

from dragon.data.ddict import DDict
from dragon.native.process import ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.telemetry import AnalysisClient

OF_DICTIONARIES = ("dictionary_bytes", "dictionary_limit", "dictionary_keys")
MakeDDict = Callable[..., DDict]


@pytest.fixture(autouse=True)
def measured() -> Iterator[None]:
    with measuring():
        yield


def spin() -> None:
    kept = b"x" * 50_000_000
    while kept:
        pass


def times_of(dictionary: str) -> list[str]:
    (record,) = AnalysisClient().get_data("dictionary_limit", {"dictionary": dictionary, "manager": "0"}, interval=0)
    return list(record["dps"])


def test_the_usage_of_a_group_is_the_sum_over_its_members() -> None:
    group = ProcessGroup(name="busy-ones")
    group.add_process(2, ProcessTemplate(spin))
    group.init()
    group.start()
    wait_until(
        lambda now: now["group_memory"] > 100_000_000 and now["group_cpu_percent"] > 10,
        "group_memory",
        "group_cpu_percent",
        group="busy-ones",
    )
    group.stop()
    group.close()
    time.sleep(0.2)
    before = newest("group_memory", group="busy-ones")
    time.sleep(0.2)
    assert newest("group_memory", group="busy-ones") == before


def test_the_memory_and_keys_of_each_manager_are_measured(make: MakeDDict) -> None:
    ddict = make(managers_per_node=2, total_mem=64 * 2**20, name="measured")
    for number in range(100):
        ddict[number] = bytes(10_000)
    wait_until(lambda now: now["dictionary_keys"] == 100, *OF_DICTIONARIES, dictionary="measured")
    now = newest(*OF_DICTIONARIES, dictionary="measured")
    assert now["dictionary_limit"] == sum(stats.total_bytes for stats in ddict.stats)
    assert 10**6 < now["dictionary_bytes"] < now["dictionary_limit"]
    records = AnalysisClient().get_data("dictionary_keys", tags={"dictionary": "measured"})
    assert {record["tags"]["manager"] for record in records} == {"0", "1"}
    ddict.clear()
    wait_until(lambda now: now["dictionary_keys"] == 0, *OF_DICTIONARIES, dictionary="measured")


def test_large_values_count_as_one_key_each(make: MakeDDict) -> None:
    numpy = pytest.importorskip("numpy")
    ddict = make(managers_per_node=1, name="large")
    for number in range(3):
        ddict[number] = numpy.zeros(10**6)
    wait_until(lambda now: now["dictionary_keys"] == 3, "dictionary_keys", dictionary="large")


def test_a_destroyed_dictionary_is_not_measured_any_more(make: MakeDDict) -> None:
    other = make(name="other")
    ddict = make(name="short-lived")
    wait_until(bool, "dictionary_keys", dictionary="short-lived")
    ddict.destroy()
    other["key"] = 1
    wait_until(lambda now: now["dictionary_keys"] == 1, "dictionary_keys", dictionary="other")
    count = len(times_of("short-lived"))
    time.sleep(0.2)
    assert len(times_of("short-lived")) == count
