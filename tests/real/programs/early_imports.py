"""What was imported from multiprocessing before `import dragon` follows the start method too."""

from __future__ import annotations

import inspect
import multiprocessing
from multiprocessing import Array, Event, Lock, Pool, Process, Queue, get_all_start_methods
from typing import Any

import dragon  # noqa: F401 - makes "dragon" a start method


def fill(queue: Any, lock: Any, event: Any, numbers: Any) -> None:
    event.wait()
    with lock:
        numbers[0] = 7
    queue.put("filled")


def is_ours(thing: Any) -> bool:
    return type(thing).__module__.startswith("dragon.")


def main() -> None:
    assert "dragon" in get_all_start_methods()
    assert next(iter(inspect.signature(Pool).parameters)) == "processes"
    multiprocessing.set_start_method("dragon")
    queue, lock, event, numbers = Queue(), Lock(), Event(), Array("i", 3)
    assert all(map(is_ours, (queue, lock, event)))
    assert not is_ours(multiprocessing.get_context("fork").Queue(maxsize=3))
    process = Process(target=fill, args=(queue, lock, event, numbers))
    process.start()
    event.set()
    assert queue.get() == "filled"
    assert numbers[:] == [7, 0, 0]
    process.join()
    with Pool(processes=2) as pool:
        assert is_ours(pool)
        assert pool.map(abs, [-1, 2]) == [1, 2]
    print("ok")


if __name__ == "__main__":
    main()
