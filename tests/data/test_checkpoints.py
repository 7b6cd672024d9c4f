"""Checkpoints: their content, how long they are kept, which clients wait for others, and the files on disk."""

from __future__ import annotations

import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dragon.data.ddict import (
    DDict,
    DDictError,
    DDictFullError,
    DDictPersistCheckpointError,
    DDictTimeoutError,
    PosixCheckpointPersister,
)
from dragon.data.ddict.shards import LocalShard
from dragon.native.machine import System
from dragon.native.process import Process
from dragon.runtime.run import this_run
from dragon.shards.records import encode_value
from dragon.shards.shard import _BLOCKED_BY_READERS, Stored
from dragon.shards.snapshot import Header, files_in, write_snapshot

if TYPE_CHECKING:
    from conftest import Site

Make = Callable[..., DDict]
WaitUntil = Callable[[Callable[[], object]], None]


def test_each_checkpoint_keeps_its_own_values(make: Make) -> None:
    ddict = make(working_set_size=3)
    for number in range(3):
        ddict["key"] = np.full(20_000, number)
        ddict[f"only {number}"] = number
        ddict.checkpoint()
    for number in range(3):
        ddict.checkpoint_id = number
        assert ddict["key"][0] == number
        assert sorted(ddict) == ["key"] + [f"only {earlier}" for earlier in range(number + 1)]
        assert len(ddict) == number + 2


def test_a_key_that_was_not_rewritten_is_in_later_checkpoints(make: Make) -> None:
    ddict = make(working_set_size=2)
    ddict["old"] = 1
    for number in range(1, 6):
        ddict.checkpoint()
        ddict["new"] = number
        assert ddict["old"] == 1
    assert ddict.checkpoint_id == ddict.current_checkpoint_id == 5


def test_a_checkpoint_id_must_be_an_integer(make: Make) -> None:
    ddict = make(working_set_size=3)
    ddict.checkpoint_id = np.int64(2)  # type: ignore[assignment]  # or whatever else is one
    ddict.update({number: number for number in range(10)})
    assert ddict[3] == 3
    with pytest.raises(TypeError, match="integer"):
        ddict.checkpoint_id = 1.5  # type: ignore[assignment]


def test_a_deleted_key_is_missing_in_that_and_later_checkpoints(make: Make) -> None:
    ddict = make(working_set_size=3)
    ddict["key"] = 1
    ddict.checkpoint()
    del ddict["key"]
    assert "key" not in ddict
    assert (len(ddict), list(ddict)) == (0, [])
    ddict.checkpoint()
    assert ddict.get("key") is None
    ddict.checkpoint_id = 0
    assert ddict["key"] == 1


def test_values_of_retired_checkpoints_use_no_memory(make: Make) -> None:
    ddict = make(1, total_mem=8 * 2**20 * System().nnodes, working_set_size=2)
    for number in range(100):
        ddict["key"] = np.full(2**17, number)
        assert ddict["key"][-1] == number
        ddict.checkpoint()


def test_rollback_returns_to_the_previous_checkpoint(make: Make) -> None:
    ddict = make(working_set_size=2)
    ddict["key"] = 0
    ddict.checkpoint()
    ddict["key"] = 1
    ddict.rollback()
    assert ddict["key"] == 0
    ddict.rollback()
    assert ddict.checkpoint_id == 0
    with pytest.raises(ValueError, match="negative"):
        ddict.checkpoint_id = -1


def test_wait_for_keys_waits_for_a_value_of_the_current_checkpoint(make: Make) -> None:
    ddict = make(working_set_size=2, wait_for_keys=True, timeout=0.1)
    ddict["key"] = 0
    ddict.pput("kept", 0)
    ddict.checkpoint()
    assert ddict["kept"] == 0
    for read in (ddict.__getitem__, ddict.get):
        with pytest.raises(DDictTimeoutError, match="key 'key' to be written"):
            read("key")
    ddict["key"] = 1
    assert ddict["key"] == ddict.get("key") == 1
    ddict.checkpoint()
    ddict["key"] = 2
    ddict.checkpoint()
    ddict["other"] = 3
    assert sorted(ddict) == ["kept", "other"]


def follow_the_one_before(ddict: DDict, mine: int, late: float) -> None:
    time.sleep(late)
    for checkpoint in range(8):
        if mine > 0:
            assert ddict[mine - 1] == checkpoint
        ddict.checkpoint()
        ddict[mine] = checkpoint + 1


def test_a_checkpoint_stays_until_all_its_keys_are_in_the_next_one(make: Make) -> None:
    ddict = make(working_set_size=3, wait_for_keys=True, timeout=20)
    for number in range(4):
        ddict[number] = 0
    processes = [Process(follow_the_one_before, (ddict, number, number / 3)) for number in range(4)]
    for process in processes:
        process.start()
    assert [process.join() for process in processes] == [0] * 4


def test_a_checkpoint_whose_keys_nobody_puts_again_is_named(make: Make) -> None:
    ddict = make(working_set_size=2, wait_for_keys=True, timeout=0.1).manager(0)
    ddict["key"] = 0
    ddict.pput("kept", 0)
    ddict.checkpoint_id = 2
    with pytest.raises(DDictTimeoutError, match="1 keys of checkpoints that manager 0 on node 0 must drop"):
        ddict["other"] = 1
    ddict.checkpoint_id = 1
    ddict["key"] = 1
    ddict.checkpoint_id = 2
    ddict["other"] = 1


def test_get_with_a_default_does_not_wait_with_wait_for_keys(make: Make) -> None:
    ddict = make(working_set_size=2, wait_for_keys=True)
    assert ("key" in ddict, ddict.get("key", "default")) == (False, "default")


def test_put_new_stores_a_non_persistent_key_again_in_each_checkpoint(make: Make) -> None:
    ddict = make(working_set_size=2, wait_for_keys=True)
    ddict.pput("kept", 0)
    assert ddict.put_new("key", 0)
    ddict.checkpoint()
    assert not ddict.put_new("kept", 1)
    assert ddict.setdefault("key", 1) == ddict["key"] == 1


def write_and_die(ddict: DDict) -> None:
    ddict["key"] = 0


def test_a_put_does_not_wait_for_a_writer_that_has_ended(make: Make) -> None:
    ddict = make(1, working_set_size=2, wait_for_writers=True).manager(0)
    process = Process(write_and_die, (ddict,))
    process.start()
    assert process.join() == 0
    ddict.checkpoint_id = 5
    ddict["key"] = 5
    assert ddict["key"] == 5


# ---- on disk


@pytest.fixture
def persistent(make: Make, tmp_path: Path) -> Callable[..., DDict]:
    """Return a function that creates dictionaries of the same name that are written to the same folder."""

    def make_one(**options: Any) -> DDict:
        given = {"name": "kept", "persist_path": str(tmp_path), "persist_count": -1}
        return make(persister_class=PosixCheckpointPersister, **{**given, **options})

    return make_one


def test_a_persisted_checkpoint_can_be_restored(persistent: Callable[..., DDict]) -> None:
    ddict = persistent()
    contents = {"array": np.arange(50_000), b"bytes": b"x" * 40_000, 3: {"small": np.arange(3)}, "k" * 600: None}
    ddict.update(contents)
    ddict.persist()
    assert ddict.persisted_ids() == [0]
    ddict.destroy()
    again = persistent(restore_from=0)
    assert len(again) == 4
    assert np.array_equal(again["array"], contents["array"])
    assert again[b"bytes"] == contents[b"bytes"]
    assert np.array_equal(again[3]["small"], np.arange(3))
    assert again["k" * 600] is None


@pytest.mark.parametrize("name", ["kept", "run[1]*"])  # with wildcard characters
def test_checkpoints_are_written_when_they_retire(persistent: Callable[..., DDict], tmp_path: Path, name: str) -> None:
    ddict = persistent(name=name, persist_freq=2, persist_count=2, working_set_size=2)
    for number in range(9):
        for key in range(20):
            ddict[key] = (number, key)
        ddict.checkpoint()
    assert ddict.persisted_ids() == [4, 6]
    ddict.restore(4)
    assert dict(ddict) == {key: (4, key) for key in range(20)}
    assert sorted({file.checkpoint for file in files_in(tmp_path)}) == [4, 6]


def test_checkpoints_also_retire_on_managers_without_writes(persistent: Callable[..., DDict]) -> None:
    ddict = persistent(persist_freq=2, working_set_size=2)
    for number in range(9):
        ddict["the only key"] = number
        ddict.checkpoint()
    assert len(ddict.manager_nodes) > 1
    assert ddict.persisted_ids() == [0, 2, 4, 6]
    ddict.restore(4)
    assert dict(ddict) == {"the only key": 4}


def test_pending_checkpoints_are_written_before_a_dictionary_is_destroyed(
    persistent: Callable[..., DDict], tmp_path: Path
) -> None:
    ddict = persistent(persist_freq=1, total_mem=2**28 * System().nnodes)
    managers = range(len(ddict.manager_nodes))
    for _ in range(3):
        for number in managers:
            ddict.manager(number)["key"] = bytes(10_000_000)
        ddict.checkpoint()
    for number in managers:
        ddict.manager(number)["key"] = 1
    assert ddict.persisted_ids() == [0, 1, 2]  # also those whose write is pending
    ddict.destroy()
    written = sorted((file.manager, file.checkpoint) for file in files_in(tmp_path))
    assert written == [(manager, checkpoint) for manager in managers for checkpoint in range(3)]
    assert persistent(restore_from=2, total_mem=2**28 * System().nnodes).manager(0)["key"] == bytes(10_000_000)


@pytest.mark.parametrize("command", [["--nodes", "1"], ["--nodes", "2"], []], ids=["dragon", "two nodes", "python"])
def test_pending_checkpoints_are_written_before_a_run_ends(site: Site, command: list[str]) -> None:
    program = """
        from dragon.data.ddict import DDict, PosixCheckpointPersister
        from dragon.native.machine import System

        if __name__ == "__main__":
            options = dict(name="kept", persist_path="files", persist_freq=1, persist_count=-1)
            ddict = DDict(1, System().nnodes, 2**28, persister_class=PosixCheckpointPersister, **options)
            for number in range(4):
                for manager in range(len(ddict.manager_nodes)):
                    ddict.manager(manager)["key"] = bytes(10_000_000)
                ddict.checkpoint()
        """
    done = site.dragon(*command, site.write(program)) if command else site.python(program)
    assert done.returncode == 0, done.stderr
    managers = 2 if "2" in command else 1
    written = sorted((file.manager, file.checkpoint) for file in files_in(site.folder / "files"))
    assert written == [(manager, checkpoint) for manager in range(managers) for checkpoint in range(3)]


@pytest.mark.parametrize("command", [["--nodes", "1"], ["--nodes", "2"]], ids=["one node", "two nodes"])
def test_the_end_of_a_run_waits_for_a_slow_disk(site: Site, command: list[str]) -> None:
    process = start_on_a_stopped_disk(site, *command)
    (site.folder / "disk works").touch()
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert sorted(file.checkpoint for file in files_in(site.folder / "files")) == [0, 1]


ENDS = [*itertools.product([("--nodes", "1"), ("--nodes", "2")], ["SIGINT", "SIGTERM", "SIGKILL"]), ((), "SIGINT")]


@pytest.mark.parametrize(("command", "name"), ENDS)
def test_a_signal_ends_the_wait_for_a_disk(
    site: Site, command: tuple[str, ...], name: str, wait_until: WaitUntil
) -> None:
    process = start_on_a_stopped_disk(site, *command)
    process.send_signal(signal.Signals[name])
    process.communicate(timeout=15)
    wait_until(lambda: not site.leftovers())


def test_a_run_ends_although_its_disk_no_longer_answers(site: Site) -> None:
    process = start_on_a_stopped_disk(site, "--nodes", "2", STUCK_S="1")
    _, errors = process.communicate(timeout=30)
    assert "kept_0_0." in errors
    assert "is given up: the disk has taken nothing for 1 s" in errors


def start_on_a_stopped_disk(site: Site, *command: str, **variables: str) -> subprocess.Popen[str]:
    """Return a run that ends, but waits for its disk until there is a file "disk works"."""
    site.write(
        """
        import os, time

        real = os.fsync

        def fsync(descriptor):
            from dragon.agent.shards import snapshots

            snapshots._STUCK_S = float(os.environ.get("STUCK_S", snapshots._STUCK_S))
            while not os.path.exists(os.environ["PYTHONPATH"] + "/disk works"):
                time.sleep(0.05)
            real(descriptor)

        os.fsync = fsync
        """,
        "sitecustomize.py",
    )
    program = site.write(
        """
        from dragon.data.ddict import DDict, PosixCheckpointPersister

        if __name__ == "__main__":
            options = dict(name="kept", persist_path="files", persist_freq=1, persist_count=-1)
            ddict = DDict(1, 1, 2**24, persister_class=PosixCheckpointPersister, **options)
            for number in range(3):
                ddict["key"] = number
                ddict.checkpoint()
        """
    )
    start = [sys.executable, "-m", "dragon", *command] if command else [sys.executable]
    process = site.start(*start, program, env={"PYTHONPATH": str(site.folder), **variables})
    assert process.stderr is not None
    assert "the run ends once checkpoints that are due are written" in process.stderr.readline()
    assert process.poll() is None
    return process


def test_later_writes_are_not_in_a_persisted_checkpoint(persistent: Callable[..., DDict]) -> None:
    ddict = persistent(working_set_size=2)
    ddict["key"] = "before"
    ddict.checkpoint()
    ddict["key"] = "after"
    ddict.rollback()
    ddict.persist()
    ddict.restore(0)
    assert ddict["key"] == "before"


def test_a_read_only_dictionary_can_advance_through_the_checkpoints(persistent: Callable[..., DDict]) -> None:
    ddict = persistent(working_set_size=2)
    for number in (0, 1, 2):
        ddict["key"] = number
        ddict.persist()
        ddict.checkpoint()
    ddict.destroy()
    reader = persistent(restore_from=0, read_only=True, persist_count=0)
    changes: list[Callable[[], Any]] = [
        lambda: reader.update(key=9),
        lambda: reader.bput("key", 9),
        lambda: reader.pput("key", 9),
        lambda: reader.pop("key"),
        reader.start_batch_put,
        reader.clear,
    ]
    for change in changes:
        with pytest.raises(DDictError, match="read-only"):
            change()
    with reader.copy() as copied:
        copied.bput("key", 9)
        assert copied["key"] == 9
    seen = [reader["key"]]
    for _ in range(2):
        reader.advance()
        seen.append(reader["key"])
    assert seen == [0, 1, 2]
    with pytest.raises(DDictPersistCheckpointError, match="no checkpoint after 2"):
        reader.advance()


def test_restart_restores_the_persisted_checkpoint(persistent: Callable[..., DDict]) -> None:
    ddict = persistent()
    ddict["key"] = 1
    ddict.persist()
    ddict.destroy()
    assert persistent(restart=True)["key"] == 1


def test_a_restart_without_a_checkpoint_gives_a_warning(persistent: Callable[..., DDict]) -> None:
    persistent().persist()
    with pytest.warns(
        RuntimeWarning, match="no checkpoint of a dictionary 'other', which begins empty; there are those"
    ):
        assert len(persistent(restart=True, name="other")) == 0


@pytest.mark.parametrize(("written", "restored"), [(1, 3), (3, 1), (2, 5), (4, 3)])
def test_a_checkpoint_can_be_restored_with_another_number_of_managers(
    persistent: Callable[..., DDict], written: int, restored: int
) -> None:
    ddict = persistent(managers_per_node=written)
    contents = {number: np.full(number * 200, number) for number in range(200)}
    ddict.update(contents)
    ddict.pput("kept", "x" * 50_000)
    ddict.bput("everywhere", [1, 2])
    ddict.persist()
    ddict.destroy()
    again = persistent(managers_per_node=restored, restore_from=0)
    assert len(again) == 202
    assert all(np.array_equal(again[number], contents[number]) for number in contents)
    assert (again["kept"], again["everywhere"]) == ("x" * 50_000, [1, 2])
    assert again.bget("everywhere") == [1, 2]
    assert all(again.manager(again.which_manager(number))[number][0] == number for number in range(1, 200))
    again.persist()
    again.restore(0)
    assert len(again) == 202


def test_a_key_stays_at_its_chosen_manager_if_that_manager_exists(persistent: Callable[..., DDict]) -> None:
    ddict = persistent(managers_per_node=4)
    count = len(ddict.manager_nodes)
    key = next(number for number in range(100) if ddict.which_manager(number) != 0)
    gone = next(number for number in range(100, 200) if ddict.which_manager(number) != count - 1)
    ddict.manager(0)[key] = "first"
    ddict.manager(count - 1)[gone] = "last"
    ddict.persist()
    ddict.destroy()
    again = persistent(managers_per_node=2, restore_from=0)
    assert again.manager(0)[key] == "first"
    assert again[gone] == "last"


def test_a_restore_that_would_merge_two_values_of_a_key_is_refused(persistent: Callable[..., DDict]) -> None:
    ddict = persistent(managers_per_node=4)
    for number in range(len(ddict.manager_nodes)):
        ddict.manager(number)["key"] = number
    ddict.persist()
    ddict.destroy()
    with pytest.raises(DDictPersistCheckpointError, match=r"key 'key' was put with manager \d and with manager \d"):
        persistent(managers_per_node=2, restore_from=0)


def test_a_damaged_file_is_refused_with_another_number_of_managers(
    persistent: Callable[..., DDict], tmp_path: Path
) -> None:
    ddict = persistent(managers_per_node=3)
    ddict.update(dict.fromkeys(range(100), "x" * 100))
    ddict.persist()
    ddict.destroy()
    for damaged in (lambda data: data[:-60] + bytes([data[-60] ^ 1]) + data[-59:], lambda data: data[:20]):
        (path,) = tmp_path.glob("kept_1_0.*")
        path.write_bytes(damaged(path.read_bytes()))
        other = persistent(managers_per_node=2)
        other["key"] = "kept"
        with pytest.raises(DDictPersistCheckpointError, match=r"kept_1_0.* is (damaged|not a checkpoint)"):
            other.restore(0)
        assert dict(other) == {"key": "kept"}


def test_another_number_of_managers_cannot_restore_from_incomplete_files(
    persistent: Callable[..., DDict], tmp_path: Path
) -> None:
    ddict = persistent(managers_per_node=3)
    ddict.persist()
    next(tmp_path.glob(f"kept_{len(ddict.manager_nodes) - 1}_0.*")).unlink()
    ddict.destroy()
    with pytest.raises(DDictPersistCheckpointError, match=r"written by one of \d managers, whose other files are not"):
        persistent(managers_per_node=2, restore_from=0)


def test_a_restore_with_another_number_of_managers_keeps_later_checkpoints(
    persistent: Callable[..., DDict],
) -> None:
    ddict = persistent(managers_per_node=3, working_set_size=2)
    for number in range(3):
        ddict["key"] = number
        ddict.persist()
        ddict.checkpoint()
    ddict.destroy()
    again = persistent(managers_per_node=1, restore_from=1)
    assert again["key"] == 1
    assert again.persisted_ids() == [0, 1, 2]


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda data: data[:-40], "damaged|truncated"),
        (lambda data: data[:5], "not a checkpoint"),
        (lambda data: b"", "not a checkpoint"),
        (lambda data: data[:300] + bytes([data[300] ^ 1]) + data[301:], "damaged"),
        (lambda data: data[:8] + b"\x09" + data[9:], "format 9"),
        (lambda data: b"PK" + data[2:], "not a checkpoint"),
    ],
    ids=["cut off", "a few bytes", "empty", "one byte changed", "another version", "another file"],
)
def test_a_damaged_file_is_refused(
    persistent: Callable[..., DDict], tmp_path: Path, damage: Callable[[bytes], bytes], what: str
) -> None:
    ddict = persistent()
    ddict.update(dict.fromkeys(range(100), "x" * 100))
    ddict.persist()
    for path in tmp_path.iterdir():
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DDictPersistCheckpointError, match=what):
        ddict.restore(0)
    assert len(ddict) == 100


def test_restoring_a_missing_checkpoint_raises_an_error(persistent: Callable[..., DDict]) -> None:
    with pytest.raises(DDictPersistCheckpointError, match=r"checkpoint 7 of 'kept' is not in .* none"):
        persistent(restore_from=7)


def test_persisting_to_an_unwritable_folder_raises_an_error(persistent: Callable[..., DDict], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ddict = persistent(persist_path=str(tmp_path / "file"))
    with pytest.raises(DDictPersistCheckpointError, match=r"^DDict Exception: /.*cannot be written"):
        ddict.persist()


def test_a_failed_persist_leaves_the_checkpoint_before_it(persistent: Callable[..., DDict], tmp_path: Path) -> None:
    ddict = persistent()
    last = max(ddict.local_managers)  # whose agent has no room
    ddict.manager(0)["first"] = ddict.manager(last)["last"] = "before"
    ddict.persist()
    before = sorted(tmp_path.iterdir())
    ddict.manager(0)["first"], ddict.manager(last)["last"] = "after", bytes(100_000)
    agent = this_run().agent.pid
    limits = resource.prlimit(agent, resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    try:
        with pytest.raises(DDictPersistCheckpointError, match=f"kept_{last}_0.* cannot be written"):
            ddict.persist()
    finally:
        resource.prlimit(agent, resource.RLIMIT_FSIZE, limits)
    assert sorted(tmp_path.iterdir()) == before
    ddict.restore(0)
    assert dict(ddict) == {"first": "before", "last": "before"}
    ddict.manager(0)["first"] = "after"
    ddict.persist()
    assert len(list(tmp_path.iterdir())) == len(before)
    ddict.restore(0)
    assert dict(ddict) == {"first": "after", "last": "before"}


@pytest.mark.parametrize("options", [[], ["--nodes", "2"]], ids=["one node", "two nodes"])
@pytest.mark.parametrize("how", ["persist", "working set"])
def test_a_run_that_is_killed_leaves_exactly_one_complete_checkpoint(
    site: Site, options: list[str], how: str, wait_until: WaitUntil
) -> None:
    site.write(
        """
        import sys
        from dragon.data.ddict import DDict, PosixCheckpointPersister
        from dragon.native.machine import System

        if __name__ == "__main__":
            how, again = sys.argv[1:]
            options = dict(name="kept", persist_path="files", persist_count=1, persister_class=PosixCheckpointPersister)
            freq = int(how == "working set")
            ddict = DDict(3, System().nnodes, 2**26, persist_freq=freq, restart=again != "", **options)
            managers = [ddict.manager(number) for number in range(len(ddict.manager_nodes))]
            (value,) = {manager["key"] for manager in managers} if again else {0}
            print(value, flush=True)
            while again != "end":
                for manager in managers:
                    manager.checkpoint_id = ddict.checkpoint_id
                    manager["key"] = value
                if how == "persist" or value == 0:
                    ddict.persist()
                    print(value, flush=True)
                ddict.checkpoint_id += freq
                value += 1
        """
    )

    def start(again: str) -> tuple[subprocess.Popen[str], int]:
        run = site.start(sys.executable, "-m", "dragon", *options, site.folder / "program.py", how, again)
        assert run.stdout is not None
        restored = run.stdout.readline()
        assert restored, run.communicate()[1]
        return run, int(restored)

    known = 0
    for again in ("", "again", "again", "again"):
        run, restored = start(again)
        assert restored >= known
        assert run.stdout is not None
        known = int(run.stdout.readline()) if not again else restored
        time.sleep(random.random())
        site.kill()
        known = max([known, *map(int, run.communicate()[0].split())])
        wait_until(lambda: not site.processes())
    run, restored = start("end")
    assert restored >= known > 0 or how == "working set"
    run.communicate(timeout=30)
    assert run.returncode == 0


def test_a_second_run_leaves_what_it_did_not_replace(persistent: Callable[..., DDict]) -> None:
    ddict = persistent(persist_count=1, working_set_size=2)
    ddict["run"] = "first"
    ddict.checkpoint_id = 5
    ddict["run"] = "first, later"
    ddict.persist()
    ddict.destroy()
    again = persistent(persist_count=1, working_set_size=2)
    for number in range(2):
        again["run"] = "second"
        again.persist()
        assert again.persisted_ids() == [number, 5]
        again.checkpoint()
    again.destroy()
    assert persistent(restore_from=5, read_only=True, persist_count=0)["run"] == "first, later"
    assert persistent(restart=True)["run"] == "second"


def test_persist_fails_if_a_later_dictionary_of_the_same_name_writes_the_same_checkpoint(
    persistent: Callable[..., DDict],
) -> None:
    first, second = persistent(), persistent()
    first["by"], second["by"] = "first", "second"
    second.persist()
    with pytest.raises(DDictPersistCheckpointError, match="another dictionary 'kept' writes there too"):
        first.persist()
    second["by"] = "changed"
    second.restore(0)
    assert second["by"] == "second"


def test_files_of_different_persists_are_not_combined(persistent: Callable[..., DDict], tmp_path: Path) -> None:
    ddict = persistent()
    ddict["key"] = 0
    ddict.persist()
    (old,) = (path for path in tmp_path.glob("kept_0_0.*"))
    data = old.read_bytes()
    ddict["key"] = 1
    ddict.persist()
    (new,) = (path for path in tmp_path.glob("kept_0_0.*"))
    new.write_bytes(data)
    with pytest.raises(DDictPersistCheckpointError, match="it belongs to the files whose names end in"):
        ddict.restore(0)


def test_files_of_earlier_versions_are_read(persistent: Callable[..., DDict], tmp_path: Path) -> None:
    ddict = persistent()
    for manager in range(len(ddict.manager_nodes)):
        header = Header("kept", manager, len(ddict.manager_nodes), 3)
        stored = Stored(0, 3, b"skey", encode_value(manager).head, [])
        write_snapshot(tmp_path / f"kept_{manager}_3.ddict", header, iter([stored]), int)
    assert ddict.persisted_ids() == [3]
    ddict.restore(3)
    assert ddict.manager(1)["key"] == 1
    ddict.persist()
    assert all(file.set for file in files_in(tmp_path))


def test_a_pipe_in_place_of_a_checkpoint_is_refused(persistent: Callable[..., DDict], tmp_path: Path) -> None:
    ddict = persistent()
    ddict.persist()
    for path in list(tmp_path.iterdir()):
        path.unlink()
        os.mkfifo(path)
    with pytest.raises(DDictPersistCheckpointError, match="not a regular file"):
        ddict.restore(0)


def test_with_a_persist_count_of_0_nothing_is_written(persistent: Callable[..., DDict], tmp_path: Path) -> None:
    ddict = persistent(persist_count=0, persist_freq=1)
    for number in range(3):
        ddict["key"] = number
        ddict.persist()
        ddict.checkpoint()
    ddict.destroy()
    assert list(tmp_path.iterdir()) == []


def count_on_two_managers(ddict: DDict) -> None:
    first, second = ddict.manager(0), ddict.manager(len(ddict.manager_nodes) - 1)
    first["first"], second["second"], number = 0, 0, 0
    second["started"] = True
    while True:
        number += 1
        first["first"] = number
        second["second"] = number


def test_a_persisted_checkpoint_is_consistent_over_all_managers(persistent: Callable[..., DDict]) -> None:
    ddict = persistent()
    process = Process(count_on_two_managers, (ddict,))
    process.start()
    ddict.manager(len(ddict.manager_nodes) - 1).wait_for("started", True, timeout=30)
    for _ in range(10):
        ddict.persist()
        saved = persistent(restore_from=0, read_only=True, persist_count=0)
        first = saved.manager(0)["first"]
        second = saved.manager(len(saved.manager_nodes) - 1)["second"]
        assert first - second in (0, 1)
        saved.destroy()
    assert process.is_alive
    process.kill()
    process.join()


def test_a_write_is_tried_again_after_the_readers_that_were_in_its_way_have_ended(make: Make) -> None:
    shard = make(1).manager(0)._scope.shards[0]
    assert isinstance(shard, LocalShard)
    blocked = shard._blocked(_BLOCKED_BY_READERS, "", 1, time.monotonic())  # nobody reads any more
    with pytest.raises(DDictFullError):
        shard._blocked(_BLOCKED_BY_READERS, "", 1, blocked)


def test_writers_continue_if_the_process_that_paused_them_has_ended(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    ddict = make(1).manager(0)
    shard = ddict._scope.shards[0]
    assert isinstance(shard, LocalShard)
    shard.pause(True)
    monkeypatch.setattr("dragon.shards.shard._MAX_PAUSE_S", 0.1)
    ddict["key"] = 1
    assert ddict["key"] == 1
