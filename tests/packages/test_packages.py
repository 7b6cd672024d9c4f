"""The public names that docs/packages.md lists for packages on top of dragon."""

from __future__ import annotations

import importlib
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Site
from dragon.commands import worded
from dragon.files import append_bytes
from dragon.native.queue import Queue
from dragon.runs import find, scratch_folder
from dragon.serialization import (
    UNSENDABLE,
    NodeSnapshot,
    OnNode,
    Snapshot,
    SnapshotGoneError,
    dumps,
    explained,
    loads,
    snapshot_on_node,
)
from dragon.signals import heeded, how_ended, name_of

GUIDE = Path(__file__).parents[2] / "docs" / "packages.md"


def rows() -> list[tuple[str, list[str]]]:
    found = []
    for line in GUIDE.read_text().splitlines():
        if line.startswith("| `dragon."):
            modules, _, names = (re.findall(r"`([\w.]+)", cell) for cell in line.strip("|").split("|"))
            found += [(module, names) for module in modules if len(modules) == 1]
    return found


@pytest.mark.parametrize(("module", "names"), rows(), ids=[module for module, _ in rows()])
def test_the_guide_lists_the_public_names_of_a_module(module: str, names: list[str]) -> None:
    offered = set(importlib.import_module(module).__all__)
    assert set(names) == offered - {"DragonLoggingError", "parser", "run_and_exit"}


def test_the_message_of_an_oserror_is_shown_without_its_number() -> None:
    assert (
        worded(FileNotFoundError(2, "No such file or directory", "jobs.csv")) == "jobs.csv: No such file or directory"
    )
    assert worded(ValueError("too few")) == "too few"


def test_a_write_error_names_the_file(tmp_path: Path) -> None:
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError, match=r"log\.csv"):
        append_bytes(full.fileno(), b"line\n", tmp_path / "log.csv")


def test_a_program_can_call_the_main_function_of_the_command(site: Site) -> None:
    done = site.python("from dragon.cli.main import main; print(main(['python', '-c', 'raise SystemExit(3)']))")
    assert done.stdout == "3\n", done.stderr


def test_signals_and_exit_codes_are_named() -> None:
    assert [name_of(signal.SIGTERM), name_of(signal.SIGRTMIN + 1)] == ["SIGTERM", "SIGRTMIN+1"]
    assert [how_ended(-signal.SIGKILL), how_ended(2)] == ["signal SIGKILL", "exit code 2"]


def test_signals_that_are_ignored_at_the_start_of_a_program_remain_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert heeded((signal.SIGTERM, signal.SIGHUP)) == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_child_ends_with_its_parent() -> None:
    program = """
import subprocess, time
from dragon.signals import end_with_parent
print(subprocess.Popen(["sleep", "60"], preexec_fn=end_with_parent).pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    while _runs(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_scratch_folder_is_private_and_is_removed() -> None:
    with scratch_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
    assert not folder.exists()


def test_a_run_has_a_folder_for_each_node(site: Site) -> None:
    program = """
import os
from pathlib import Path
from dragon.runs import choose, find
folder = Path(os.environ["DRAGON_RUN"])
run = choose(folder.name, find())
print([node.folder for node in run.nodes] == [folder] and choose(run.name, find()) == run)
"""
    done = site.dragon(site.write(program))
    assert done.stdout == "True\n", done.stderr
    assert isinstance(find(), list)


def test_functions_of_the_main_program_are_serialized_by_value() -> None:
    twice: Any = loads(dumps(lambda number: 2 * number))
    assert twice(4) == 8


def test_a_snapshot_can_be_sent_repeatedly_and_does_not_change_with_its_object() -> None:
    value = {"handle": Queue(), "numbers": bytearray(100_000)}
    snapshot = Snapshot(value)
    assert snapshot.same_as(Snapshot(value))
    value["numbers"][0] = 1
    assert not snapshot.same_as(Snapshot(value))
    queue: Any = Queue()
    for _ in range(2):
        queue.put(snapshot)
        assert queue.get()["numbers"] == bytearray(100_000)


def test_readers_of_a_large_snapshot_have_private_copies() -> None:
    value = {"numbers": np.zeros(1 << 20)}
    snapshot = snapshot_on_node(value)
    queue: Any = Queue()
    queue.put(snapshot)
    received = queue.get()
    assert isinstance(snapshot, NodeSnapshot)
    assert isinstance(received, OnNode)
    one, other = received.load(), received.load()
    one["numbers"][0] = 1
    assert other["numbers"].sum() == 0
    assert snapshot.is_of(value)
    value["numbers"][-1] = 1
    assert not snapshot.is_of(value)
    assert received.load()["numbers"].sum() == 0


def test_a_large_snapshot_that_was_removed_is_an_error() -> None:
    queue: Any = Queue()
    queue.put(snapshot_on_node(np.zeros(1 << 20)))
    with pytest.raises(SnapshotGoneError):
        queue.get().load()


def test_a_small_snapshot_is_sent_by_value() -> None:
    queue: Any = Queue()
    queue.put(snapshot_on_node([1, 2]))
    assert queue.get() == [1, 2]


def test_an_error_names_the_object_that_cannot_be_sent() -> None:
    parts = {"dataset": [1], "lock": threading.Lock()}
    with pytest.raises(UNSENDABLE) as raised:
        Snapshot(parts)
    assert str(explained(raised.value, parts)).startswith("lock cannot be sent to another process")
