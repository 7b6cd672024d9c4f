"""Managers of multiprocessing: shared containers, locks and pools in a server process of the runtime."""

from __future__ import annotations

import multiprocessing
from multiprocessing.managers import BaseManager, DictProxy
from typing import Any

import dragon  # noqa: F401 - makes "dragon" a start method


class Counter:
    def __init__(self, start: int) -> None:
        self.value = start

    def add(self, number: int) -> int:
        self.value += number
        return self.value


class CounterManager(BaseManager):
    pass


CounterManager.register("Counter", Counter)


def note(table: DictProxy[int, int], lock: Any, seen: Any, number: int) -> None:
    table[number] = number**2
    with lock:
        seen.append(number)


def add(counter: Any, times: int) -> None:
    for _ in range(times):
        counter.add(1)


def main() -> None:
    multiprocessing.set_start_method("dragon")
    with multiprocessing.Manager() as manager:
        table, seen, lock = manager.dict(), manager.list(), manager.Lock()
        processes = [multiprocessing.Process(target=note, args=(table, lock, seen, number)) for number in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert dict(table) == {0: 0, 1: 1, 2: 4, 3: 9}
        assert sorted(seen) == [0, 1, 2, 3]
        with manager.Pool(2) as pool:
            assert pool.map(abs, [-1, 2, -3]) == [1, 2, 3]
    with CounterManager() as counters:
        counter = counters.Counter(5)  # type: ignore[attr-defined]
        process = multiprocessing.Process(target=add, args=(counter, 10))
        process.start()
        process.join()
        assert counter.add(0) == 15
    print("ok")


if __name__ == "__main__":
    main()
