"""Ends a task that takes more memory than it has asked for, before the kernel ends another one for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from dragon.infrastructure.plain_number import in_units

_PERIOD_S = 0.2  # seconds between two looks


def _own_memory(process: psutil.Process) -> int:
    """Return the bytes that a process and its descendants have for themselves, each page once; 0 if it has ended, or
    if the kernel, such as gVisor's, does not say so."""
    found = 0
    try:
        pids = [process.pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return 0
    for pid in pids:
        try:
            rows = dict(row.split(":") for row in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
        except OSError:
            continue  # it has ended
        found += int(rows.get("Pss_Anon", rows.get("Anonymous", "0 kB")).split()[0]) * 1024
    return found


@contextmanager
def limited(pid: int, most: int, exceeded: Callable[[MemoryError], object]) -> Iterator[None]:
    """Within the block call `exceeded`, in another thread, once the process and its descendants have more than `most`
    bytes; if it is this process, what it had before does not count. With 0 there is no limit."""
    try:
        process = psutil.Process(pid) if most else None
    except psutil.NoSuchProcess:
        process = None  # it has ended already
    if process is None:
        yield
        return
    ends = threading.Event()
    before = _own_memory(process) if pid == os.getpid() else 0

    def watch() -> None:
        while not ends.wait(_PERIOD_S):
            taken = _own_memory(process) - before
            if taken > most:
                text = f"the task took {in_units(taken)} of memory, and has asked for {in_units(most)} (memory=)"
                exceeded(MemoryError(text))
                return

    watcher = threading.Thread(target=watch, name="dragon-memory", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ends.set()
        watcher.join()
