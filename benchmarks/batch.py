"""Short function tasks a second: a batch and our executor beside the standard library's, in the same run.

    python benchmarks/batch.py [WORKERS] [TASKS]

Each line printed is JSON: {"name": ..., "value": ..., "unit": ..., "better": "lower" | "higher"}.
"""

import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from dragon.workflows.batch import Batch
from dragon.workflows.executor import DragonExecutor

WORKERS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
TASKS = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000


def say(name, value, unit="1/s", better="higher"):
    print(json.dumps({"name": name, "value": round(value, 3), "unit": unit, "better": better}), flush=True)


def add(a, b):
    return a + b


def rate(name, submit, result):
    assert [result(task) for task in [submit(add, i, 1) for i in range(100)]] == list(range(1, 101))
    start = time.perf_counter()
    tasks = [submit(add, i, 1) for i in range(TASKS)]
    assert sum(result(task) for task in tasks) == TASKS * (TASKS + 1) // 2
    say(f"{name}, independent tasks", TASKS / (time.perf_counter() - start))


def chain(batch):
    start = time.perf_counter()
    last = batch.function(add, 0, 0)
    for _ in range(TASKS):
        last = batch.function(add, last, 1)
    assert last.get() == TASKS
    say("batch, each task needs the one before", TASKS / (time.perf_counter() - start))


def first():
    start = time.perf_counter()
    with Batch(workers_per_node=WORKERS) as batch:
        batch.function(add, 1, 2).get()
        say("batch, first result", (time.perf_counter() - start) * 1e3, "ms", "lower")


if __name__ == "__main__":
    first()
    with Batch(workers_per_node=WORKERS) as batch:
        rate("batch", batch.function, lambda task: task.get())
        chain(batch)
    with DragonExecutor(WORKERS) as executor:
        rate("DragonExecutor", executor.submit, lambda future: future.result())
    with ProcessPoolExecutor(WORKERS) as executor:
        rate("ProcessPoolExecutor", executor.submit, lambda future: future.result())
