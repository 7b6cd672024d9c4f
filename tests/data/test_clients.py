"""Several processes that use one dictionary: which checkpoint each one sees, and which ones wait for others; restarted,
cloned and synchronized dictionaries; and the messages of errors.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from dragon.data.ddict import (
    DDict,
    DDictCheckpointSyncError,
    DDictError,
    DDictFullError,
    DDictFutureCheckpointError,
    DDictKeyError,
    DDictPersistCheckpointError,
    DDictTimeoutError,
    SentinelQueue,
)
from dragon.infrastructure.errors import DestroyedError
from dragon.infrastructure.policy import Policy
from dragon.native import Event, Process, Queue
from dragon.native.machine import System

Make = Callable[..., DDict]


@pytest.fixture
def waiting(make: Make) -> DDict:
    return make(working_set_size=2, wait_for_keys=True, wait_for_writers=True, timeout=60)


# ---- keys at chosen managers


def test_keys_from_an_iteration_can_be_looked_up(make: Make) -> None:
    ddict = make()
    managers = len(ddict.manager_nodes)
    for number in range(4 * managers):
        ddict.manager(number % managers)[number] = str(number)
    keys = ddict.keys()
    for key in keys:
        assert key in ddict
        assert key in keys
        assert ddict[key] == ddict.get(key) == ddict.begin_get(key).result() == str(key)
    assert ddict.get_many(range(4 * managers)) == [str(number) for number in range(4 * managers)]
    ddict.wait_for(3, "3", timeout=30)
    assert [ddict.pop(number) for number in range(managers)] == [str(number) for number in range(managers)]
    for number in range(managers, 2 * managers):
        del ddict[number]
    assert sorted(ddict) == list(range(2 * managers, 4 * managers))
    assert (0 in ddict, ddict.get(0), ddict.pop(0, None)) == (False, None, None)
    with pytest.raises(DDictKeyError):
        del ddict[0]


def test_parts_of_values_at_chosen_managers_can_be_read(make: Make) -> None:
    ddict = make(1) if System().nnodes > 1 else make()
    other = (ddict.which_manager("key") + 1) % len(ddict.manager_nodes)
    ddict.manager(other)["key"] = bytes(range(256)) * 256
    assert ddict.get_part("key", 3, 6) == b"\3\4\5"
    assert ddict.bytes_size("key") == 65536
    if other in ddict.local_managers:
        with ddict.view("key") as memory:
            assert memory[:3] == b"\0\1\2"


def test_a_deleted_broadcast_key_is_missing_although_keys_are_at_chosen_managers(make: Make) -> None:
    ddict = make()
    for number in range(len(ddict.manager_nodes)):
        ddict.manager(number)["own"] = number
    ddict.bput("everywhere", 1)
    del ddict["everywhere"]
    assert ("everywhere" in ddict, ddict.get("everywhere")) == (False, None)


def look_up(ddict: DDict, text: str, queue: Queue) -> None:
    queue.put(["key" in ddict, ddict["key"], DDict.attach(text)["key"]])


def test_every_process_finds_keys_at_chosen_managers(make: Make) -> None:
    ddict, queue = make(), Queue()
    assert "key" not in ddict
    process = Process(look_up, (ddict, ddict.serialize(), queue))
    ddict.manager((ddict.which_manager("key") + 1) % len(ddict.manager_nodes))["key"] = 1
    process.start()
    assert queue.get(timeout=60) == [True, 1, 1]
    process.join()


# ---- what each checkpoint shows


def test_with_wait_for_keys_a_checkpoint_has_its_own_and_persistent_keys(waiting: DDict) -> None:
    waiting["old"] = 1
    waiting.pput("kept", 2)
    waiting.checkpoint()
    assert (len(waiting), list(waiting.keys()), "old" in waiting, "kept" in waiting) == (1, ["kept"], False, True)
    waiting["new"] = 3
    assert (len(waiting), sorted(waiting)) == (2, ["kept", "new"])
    waiting.clear()
    assert (len(waiting), sorted(waiting)) == (1, ["kept"])
    assert waiting.pop("kept") == 2
    assert (len(waiting), "kept" in waiting) == (0, False)
    waiting.rollback()
    assert (len(waiting), sorted(waiting)) == (2, ["kept", "old"])


@pytest.mark.parametrize("wait", [True, False])
def test_a_retired_checkpoint_can_be_neither_read_nor_written(make: Make, wait: bool) -> None:
    ddict = make(working_set_size=2, wait_for_keys=wait, timeout=60)
    for number in range(3):
        ddict.update(dict.fromkeys(range(20), number))
        ddict.pput("kept", number)
        ddict.checkpoint()
    ddict.checkpoint_id = 1
    assert (len(ddict), ddict[3]) == (21, 1)
    ddict.rollback()
    uses: list[Callable[[], object]] = [
        lambda: ddict[1],
        lambda: ddict.get(1),
        lambda: ddict.get_many([1]),
        lambda: 1 in ddict,
        lambda: len(ddict),
        lambda: list(ddict.keys()),
        lambda: list(ddict.items()),
        lambda: ddict.pop(1),
        lambda: ddict.__delitem__(1),
        lambda: ddict.__setitem__(1, 1),
        lambda: ddict.pput("kept", 1),
        lambda: ddict.bput("all", 1),
        lambda: ddict.fetch_add("count"),
        lambda: ddict.put_many({1: 1}),
        ddict.clear,
    ]
    for use in uses:
        with pytest.raises(
            DDictCheckpointSyncError, match=r"checkpoint 0 is retired: manager \d+ on node \d+ holds 1 to 2"
        ) as raised:
            use()
        assert raised.value.lib_err == "DRAGON_DDICT_CHECKPOINT_RETIRED"
    ddict.sync_to_newest_checkpoint()
    assert ddict[1] == 2
    assert sum(one.num_keys for one in DDict.attach(ddict.serialize()).stats) == 21


# ---- several clients


def put_in_checkpoints(ddict: DDict, number: int, count: int) -> None:
    for checkpoint in range(count):
        ddict[f"{number}"] = (number, checkpoint)
        for other in range(3):
            assert ddict[f"{other}"] == (other, checkpoint)
        ddict.checkpoint()
    ddict.detach()


def test_clients_that_wait_for_each_other_go_through_checkpoints_together(waiting: DDict) -> None:
    processes = [Process(put_in_checkpoints, (waiting, number, 12)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        assert process.join(timeout=120) == 0
    waiting.checkpoint_id = 11
    assert {key: waiting[key] for key in waiting} == {f"{number}": (number, 11) for number in range(3)}


def take_later(ddict: DDict, queue: Queue) -> None:
    ddict.checkpoint()
    queue.put((ddict["a"], ddict.get("b"), ddict.pop("c")))
    del ddict["d"]
    queue.put("d" in ddict)


def test_reads_and_deletions_wait_for_the_key(waiting: DDict) -> None:
    queue = Queue()
    waiting["a"] = "old"
    process = Process(take_later, (waiting, queue))
    process.start()
    waiting.checkpoint()
    for key in "abcd":
        time.sleep(0.1)
        waiting[key] = key
    assert queue.get(timeout=60) == ("a", "b", "c")
    assert queue.get(timeout=60) is False
    process.join()
    assert sorted(waiting) == ["a", "b"]


def stay_behind(ddict: DDict, ready: Event, go_on: Event) -> None:
    ddict["slow"] = 0
    ready.set()
    go_on.wait()
    for number in (1, 2):  # the key must be in checkpoint 1 before checkpoint 0 is dropped
        ddict.checkpoint()
        ddict["slow"] = number


def put_ahead(ddict: DDict, queue: Queue) -> None:
    ddict.checkpoint_id = 2
    queue.put("begun")
    ddict["fast"] = 2
    queue.put("put")


def get_ahead(ddict: DDict, queue: Queue) -> None:
    ddict.checkpoint_id = 2
    queue.put(ddict["fast"])


def test_a_put_waits_for_slower_writers_and_readers_wait_for_the_put(make: Make) -> None:
    ddict = make(1, working_set_size=2, wait_for_keys=True, wait_for_writers=True).manager(0)
    ready, go_on, puts, gets = Event(), Event(), Queue(), Queue()
    slow = Process(stay_behind, (ddict, ready, go_on))
    slow.start()
    assert ready.wait(60)
    fast, reader = Process(put_ahead, (ddict, puts)), Process(get_ahead, (ddict, gets))
    fast.start()
    reader.start()
    assert puts.get(timeout=60) == "begun"
    time.sleep(0.5)
    assert puts.empty()
    assert gets.empty()
    ddict.checkpoint_id = 2
    ddict.start_batch_put()
    ddict["mine"] = 1
    with pytest.raises(DDictFutureCheckpointError, match="2 is beyond the working set of manager 0") as raised:
        ddict.end_batch_put()
    assert raised.value.lib_err == "DRAGON_DDICT_FUTURE_CHECKPOINT"
    with pytest.raises(DDictFutureCheckpointError):
        ddict.bput("mine", 1)
    go_on.set()
    assert puts.get(timeout=60) == "put"
    assert gets.get(timeout=60) == 2
    for process in (slow, fast, reader):
        assert process.join(timeout=60) == 0
    assert ddict["slow"] == 2


def test_a_batch_in_the_working_set_does_not_wait_for_other_clients(waiting: DDict) -> None:
    for checkpoint in range(2):
        waiting.start_batch_put()
        waiting.update(dict.fromkeys(range(20), checkpoint))
        waiting.end_batch_put()
        waiting.bput("everywhere", checkpoint)
        waiting.checkpoint()
    waiting.checkpoint_id = 1
    assert (waiting.bget("everywhere"), waiting[3], len(waiting)) == (1, 1, 21)


def put_for_ever(ddict: DDict, queue: Queue) -> None:
    value = bytes(30 << 20)
    queue.put(os.getpid())
    while True:
        ddict["large"] = value


def test_a_put_times_out_while_a_stopped_process_is_writing() -> None:
    queue: Queue = Queue()
    with DDict(1, 1, 2**28, timeout=0.5) as ddict:
        here = Policy(placement=Policy.Placement.LOCAL)  # where the dictionary is: it writes into that itself
        process = Process(put_for_ever, (ddict, queue), policy=here)
        process.start()
        writer = queue.get()
        raised: list[str] = []
        for attempt in range(100):
            os.kill(writer, signal.SIGSTOP)
            try:
                ddict["small"] = attempt
            except DDictTimeoutError as error:
                raised.append(str(error))
            os.kill(writer, signal.SIGCONT)
            time.sleep(0.01)
            if raised:
                break
        process.kill()
        process.join()
        assert f"process {writer} is writing" in raised[0]
        ddict["small"] = "after"  # what the writer had begun when it was killed is undone
        assert ddict["small"] == "after"


# ---- restarted, cloned, brought into step


def test_a_dictionary_can_be_restarted_repeatedly(make: Make) -> None:
    ddict = make(name="restarted")
    ddict.update({number: bytes([number]) * 50_000 for number in range(20)})
    ddict.manager(0)["there"] = 0
    for number in range(3):
        old = DDict.attach(ddict.serialize())
        ddict.destroy(allow_restart=True)
        with pytest.raises(DestroyedError):
            old["there"]
        with pytest.raises(DestroyedError):
            old["there"] = 1
        ddict = DDict(2, 1, 2**24, name="restarted", restart=True)
        assert ddict["there"] == number
        assert ddict.empty_managers == []
        assert all(ddict[key] == bytes([key]) * 50_000 for key in range(20))
        ddict["there"] = ddict.pop("there") + 1
    ddict.destroy()


def test_read_values_are_unchanged_by_writes_to_a_restarted_dictionary(make: Make) -> None:
    ddict = make(1, name="viewed")
    mine = ddict.manager(ddict.main_manager)
    mine["key"] = b"x" * 100_000
    with mine.view("key") as memory:
        ddict.destroy(allow_restart=True)
        with DDict(name="viewed", restart=True) as again:
            mine = again.manager(again.main_manager)
            for number in range(20):
                mine["key"] = bytes([number]) * 100_000
            assert memory == b"x" * 100_000
            assert mine["key"] == bytes([19]) * 100_000


def test_a_restarted_dictionary_has_all_its_checkpoints(make: Make) -> None:
    options: dict[str, Any] = {"working_set_size": 3, "wait_for_keys": True, "timeout": 60}
    ddict = make(name="waited", **options)
    for number in range(2):
        ddict["key"] = number
        ddict.pput(f"kept {number}", number)
        ddict.checkpoint()
    ddict.destroy(allow_restart=True)
    with DDict(2, 1, 2**24, name="waited", restart=True, **options) as again:
        assert (again.checkpoint_id, again.wait_for_keys, again["key"]) == (0, True, 0)
        again.checkpoint()
        assert (again["key"], sorted(again)) == (1, ["kept 0", "kept 1", "key"])
        again.checkpoint()
        assert sorted(again) == ["kept 0", "kept 1"]
        again["key"] = 2
        assert again["key"] == 2


def test_clones_hold_all_checkpoints_and_nothing_else(make: Make) -> None:
    options: dict[str, Any] = {"working_set_size": 3, "wait_for_writers": True, "timeout": 60}
    ddict, *clones = [make(**options) for _ in range(3)]
    for checkpoint in range(3):
        ddict.update({number: (checkpoint, number) for number in range(10)})
        ddict[f"only {checkpoint}"] = checkpoint
        if checkpoint == 2:
            del ddict["only 0"]
        ddict.checkpoint()
    for clone in clones:
        clone["old"] = 1
    ddict.clone([clone.serialize() for clone in clones])
    for clone in clones:
        for checkpoint in range(3):
            ddict.checkpoint_id = clone.checkpoint_id = checkpoint
            assert dict(clone.items()) == dict(ddict.items())
    assert sorted(key for key in clones[0] if isinstance(key, str)) == ["only 1", "only 2"]
    clones[0].checkpoint_id = 2
    clones[0]["more"] = 1
    assert "more" not in ddict


def test_empty_managers_are_filled_with_all_checkpoints(make: Make) -> None:
    options: dict[str, Any] = {"working_set_size": 2, "wait_for_keys": True, "timeout": 60}
    full, empty, half = (make(**options) for _ in range(3))
    for ddict in (full, half):
        for checkpoint in range(4):
            ddict.checkpoint_id = checkpoint
            if ddict is full or checkpoint == 0:
                ddict.update(dict.fromkeys(range(20), checkpoint))
    DDict.synchronize_ddicts([one.serialize() for one in (half, empty, full)])
    empty.checkpoint_id = half.checkpoint_id = 0
    assert dict(empty.items()) == dict(half.items())
    empty.destroy()
    other = make(**options)
    DDict.synchronize_ddicts([one.serialize() for one in (full, other)])
    for checkpoint in (2, 3):
        other.checkpoint_id = checkpoint
        assert dict(other.items()) == dict.fromkeys(range(20), checkpoint)


def test_only_the_handle_that_created_a_dictionary_can_copy_it(make: Make) -> None:
    ddict = make(working_set_size=2)
    for number in range(2):
        ddict["key"] = number
        ddict.checkpoint()
    for other in (DDict.attach(ddict.serialize()), pickle.loads(pickle.dumps(ddict))):
        with pytest.raises(DDictError, match=r"only the handle that made .* can copy it") as raised:
            other.copy()
        assert raised.value.lib_err == "DRAGON_INVALID_ARGUMENT"
    with ddict.copy() as copied:
        assert copied["key"] == 0
        copied.checkpoint()
        assert copied["key"] == 1


# ---- errors, filters


def test_errors_have_codes(make: Make) -> None:
    ddict = make()
    ddict["text"] = "text"
    cases: list[tuple[str, Callable[[], object]]] = [
        ("KEY_NOT_FOUND", lambda: ddict["missing"]),
        ("KEY_NOT_FOUND", lambda: ddict.pop("missing")),
        ("KEY_NOT_FOUND", lambda: ddict.bget("missing")),
        ("INVALID_VALUE", lambda: ddict.fetch_add("text")),
        ("INVALID_ARGUMENT", lambda: ddict.manager(99)),
        ("MEMORY_POOL_FULL", lambda: ddict.__setitem__("large", bytes(2**25))),
        ("MEMORY_POOL_FULL", lambda: ddict.bput("large", bytes(2**25))),
        ("INVALID_OPERATION", ddict.end_batch_put),
        ("INVALID_OPERATION", lambda: ddict.restore(7)),
        ("TIMEOUT", lambda: ddict.wait_for("text", "other", timeout=0.01)),
    ]
    for code, use in cases:
        with pytest.raises(DDictError) as raised:
            use()
        assert raised.value.lib_err == f"DRAGON_{code}"
        assert pickle.loads(pickle.dumps(raised.value)).lib_err == raised.value.lib_err
    ddict.freeze()
    for use in (lambda: ddict.__setitem__("a", 1), lambda: ddict.pop("text"), ddict.clear):
        with pytest.raises(DDictError) as raised:
            use()
        assert raised.value.lib_err == "DRAGON_INVALID_OPERATION"
    ddict.unfreeze()
    assert dict(ddict.items()) == {"text": "text"}


def test_a_broadcast_that_does_not_fit_on_a_manager_is_stored_on_none(make: Make) -> None:
    ddict = make(total_mem=2 * System().nnodes * 8 * 2**20)
    last = len(ddict.manager_nodes) - 1
    ddict.manager(last)["large"] = bytes(7 * 2**20)
    with pytest.raises(DDictFullError, match="no manager has stored"):
        ddict.bput("all", bytes(4 * 2**20))
    with pytest.raises(DDictKeyError):
        ddict.bget("all")
    assert len(ddict["large"]) == 7 * 2**20


def test_restore_without_a_persister_raises_an_error(make: Make) -> None:
    ddict = make()
    ddict["key"] = 1
    ddict.persist()
    assert ddict.persisted_ids() == []
    with pytest.raises(DDictPersistCheckpointError):
        ddict.restore(0)
    assert ddict["key"] == 1


def largest(ddict: DDict, queue: SentinelQueue, most: int) -> None:
    for key in sorted(ddict.keys(), reverse=True):
        if key < most:
            queue.put(key)


def all_keys(ddict: DDict, queue: SentinelQueue) -> None:
    for key in ddict:
        queue.put(key)
    queue.close()


def test_filter_functions_put_keys_into_a_queue(make: Make) -> None:
    ddict = make()
    ddict.update({number: number for number in range(50)})
    with ddict.filter(largest, (40,), lambda x, y: x > y) as found:
        assert [next(found) for _ in range(5)] == [39, 38, 37, 36, 35]
    for constant in (True, False):
        with ddict.filter(all_keys, (), lambda x, y, constant=constant: constant, 2) as found:
            assert sorted(found) == list(range(50))


def test_an_empty_list_of_policies_starts_managers_on_each_node_with_a_warning(make: Make) -> None:
    with pytest.warns(RuntimeWarning, match="each node has 2 managers"):
        ddict = DDict(None, None, 2**24, policy=[], managers_per_policy=2)
    with ddict:
        ddict["key"] = 1
        assert len(ddict.manager_nodes) == 2 * System().nnodes
