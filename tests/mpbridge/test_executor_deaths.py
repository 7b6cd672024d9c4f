"""ProcessPoolExecutor ends with the standard library's errors, and soon, whenever its workers die."""

from __future__ import annotations

import pytest

from conftest import Site

PROGRAM = """
import multiprocessing as mp, os, random, signal, sys, time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import dragon

DELAYS = [0, 0, 0, 0.01, 0.1, 0.5]
ENDS = ["exit", "kill", "leave", "return", "return", "return", "return"]


def task(delay, how):
    time.sleep(delay)
    {"exit": lambda: os._exit(3), "kill": lambda: os.kill(os.getpid(), 9), "leave": sys.exit, "return": int}[how]()


def initialise(delay, dies):
    time.sleep(delay)
    if dies:
        os._exit(3)


if __name__ == "__main__":
    draw, context = random.Random(int(sys.argv[1])), mp.get_context("dragon")
    for number in range(int(sys.argv[2])):
        options = {"initializer": initialise, "initargs": (draw.choice(DELAYS), draw.random() < 0.3)}
        if draw.random() < 0.7:
            options = {}
        if draw.random() < 0.3:
            options["max_tasks_per_child"] = draw.randint(1, 2)
        with ProcessPoolExecutor(draw.randint(1, 4), context, **options) as executor:
            futures = []
            try:
                for _ in range(draw.randint(1, 8)):
                    futures.append(executor.submit(task, draw.choice(DELAYS), draw.choice(ENDS)))
                    time.sleep(draw.choice([0, 0, 0, 0.1, 0.3]))
            except BrokenProcessPool:
                pass
            for future in futures:
                try:
                    future.result(timeout=60)
                except (BrokenProcessPool, SystemExit):
                    pass
    print("ended")
"""


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("seed", [1, 2])
def test_an_executor_ends_whenever_its_workers_die(site: Site, nodes: int, seed: int) -> None:
    done = site.dragon("--nodes", str(nodes), site.write(PROGRAM), str(seed), "12", timeout=240)
    assert done.stdout == "ended\n", done.stderr
    assert "Traceback" not in done.stderr


def test_all_workers_of_an_executor_start_with_its_first_task(site: Site) -> None:
    done = site.python("""
        import multiprocessing as mp, os
        from concurrent.futures import ProcessPoolExecutor
        import dragon

        if __name__ == "__main__":
            with ProcessPoolExecutor(3, mp.get_context("dragon")) as executor:
                executor.submit(os.getpid).result()
                print(len(mp.active_children()))
    """)
    assert done.stdout == "3\n"
