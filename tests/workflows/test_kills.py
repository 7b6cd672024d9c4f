"""A batch whose workers, nodes and program are killed again and again."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from conftest import Site

_TASKS = 2000
_PROGRAM = f"""
    import os, time
    from dragon.workflows.batch import Batch

    def work(number):
        with open("workers", "a") as file:
            print(os.getpid(), os.getppid(), file=file)
        time.sleep(0.02)
        with open("ran", "a") as file:
            print(number, file=file)
        return number

    def total(*parts):
        return sum(parts)

    if __name__ == "__main__":
        open("workers", "w").close()
        with open("head", "w") as file:
            print(os.getpid(), os.getppid(), file=file)
        with Batch(workers_per_node=2, journal="run.journal") as batch:
            options = batch.options(retries=2, cpus=CPUS)
            tasks = [options.function(work, number) for number in range({_TASKS})]
            sums = [options.function(total, *tasks[at : at + 10]) for at in range(0, {_TASKS}, 10)]
            print(sum(one.get() for one in sums))
"""


class Killer:
    """Kills a worker three times a second, a node now and then, and twice the program itself."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._random = folder, random.Random(seed)
        self.killed: Counter[str] = Counter()
        self._next_node, self._next_head = time.monotonic() + 4, time.monotonic() + self._random.uniform(3, 6)

    def step(self) -> None:
        """Kill what is due. Waits a while before."""
        time.sleep(0.3)
        seen = self._pairs("workers")[-60:]
        head = self._pairs("head")
        if not seen or not head:
            return
        self._kill("worker", self._random.choice(seen)[0])
        if time.monotonic() > self._next_head and self.killed["head"] < 2:
            self._kill("head", head[0][0])
            self._next_head = time.monotonic() + self._random.uniform(3, 6)
        elif time.monotonic() > self._next_node:
            others = sorted({zygote for _, zygote in seen} - {head[0][1]})
            if len(others) > 1:
                self._kill("node", self._random.choice(others))
            self._next_node = time.monotonic() + 6

    def _pairs(self, name: str) -> list[tuple[int, int]]:
        path = self._folder / name
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(first), int(second)) for first, second in (line.split() for line in lines if " " in line)]

    def _kill(self, what: str, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.killed[what] += 1


@pytest.mark.parametrize("cpus", ["None", "2"])
@pytest.mark.parametrize("seed", range(2))
def test_every_task_has_its_effect_whoever_is_killed(site: Site, cpus: str, seed: int) -> None:
    program = site.write(_PROGRAM.replace("CPUS", cpus))
    killer = Killer(site.folder, seed)
    for _ in range(8):
        for name in ("workers", "head"):
            (site.folder / name).unlink(missing_ok=True)
        running = site.start(sys.executable, "-m", "dragon", "--nodes", "4", "--cpus", "2", program)
        while running.poll() is None:
            killer.step()
        out, err = running.communicate()
        if running.returncode == 0:
            break
        assert running.returncode in (128 + signal.SIGKILL, 1), err
    assert out == f"{sum(range(_TASKS))}\n", err
    assert killer.killed["worker"] > 3
    ran = Counter(map(int, (site.folder / "ran").read_text().split()))
    assert set(ran) == set(range(_TASKS))
    # A task runs again only if a kill met it or, of the whole program's, its record.
    assert ran.total() - _TASKS <= killer.killed.total() + 8 * (killer.killed["head"] + killer.killed["node"])
