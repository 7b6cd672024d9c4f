"""The profile of a handle's operations, and its log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from dragon.data.ddict import DDict

Make = Callable[..., DDict]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Capture the log of dictionaries."""
    log = logging.getLogger("dragon.ddict")
    log.addHandler(caplog.handler)
    yield caplog
    log.removeHandler(caplog.handler)
    log.setLevel(logging.NOTSET)


def test_operations_are_counted_with_their_bytes_and_times(ddict: DDict) -> None:
    ddict.profile_reset()
    ddict["large"] = bytes(100_000)
    for _ in range(3):
        ddict["large"]
    ddict.fetch_add("number", 5)
    assert ddict.pop("number") == 5
    del ddict["large"]
    seen = ddict.profile()
    assert {name: one.count for name, one in seen.items()} == {
        "put": 1,
        "get": 3,
        "fetch_add": 1,
        "pop": 1,
        "delete": 1,
    }
    assert 100_000 < seen["put"].bytes < 100_100
    assert seen["get"].bytes == 3 * seen["put"].bytes
    assert 0 < seen["get"].longest < seen["get"].seconds


def test_operations_on_many_keys_are_counted_with_their_bytes(ddict: DDict) -> None:
    ddict.profile_reset()
    ddict.update(dict.fromkeys(range(20), "x" * 100))
    assert len(ddict.get_many(range(20))) == 20
    seen = ddict.profile()
    assert seen["put_many"].count == len({ddict.which_manager(number) for number in range(20)})
    assert seen["get"].count == 20
    assert seen["get"].bytes == seen["put_many"].bytes == 20 * 101


def test_profile_reset_clears_the_counts(ddict: DDict) -> None:
    ddict.profile_reset()
    ddict["key"] = 1
    ddict.profile_reset()
    assert ddict.profile() == {}


def test_operations_on_one_manager_are_counted_in_the_profile_of_the_handle(ddict: DDict) -> None:
    ddict.profile_reset()
    ddict.manager(0)["key"] = 1
    assert ddict.profile()["put"].count == 1


def test_a_missing_key_is_a_read_without_bytes(ddict: DDict) -> None:
    ddict.profile_reset()
    assert ddict.get("missing") is None
    assert (ddict.profile()["get"].count, ddict.profile()["get"].bytes) == (1, 0)


def test_each_operation_is_logged(ddict: DDict, logged: pytest.LogCaptureFixture) -> None:
    ddict.setup_logging()
    ddict["name"] = b"value"
    where = f"manager {ddict.which_manager('name')} on node"
    assert any(f"put 'name', {where}" in message and "6 bytes" in message for message in logged.messages)


def test_a_handle_with_trace_writes_a_log(make: Make, logged: pytest.LogCaptureFixture) -> None:
    ddict = DDict.attach(make(trace=True).serialize(), trace=True)
    ddict["name"] = 1
    assert any("put 'name'" in message for message in logged.messages)
