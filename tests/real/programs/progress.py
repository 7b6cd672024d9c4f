"""tqdm: bars of several processes that share its lock, and a bar over a pool's results."""

from __future__ import annotations

import io
import multiprocessing
from typing import Any

from tqdm import tqdm
from tqdm.contrib.concurrent import process_map

import dragon  # noqa: F401 - makes "dragon" a start method


def square(number: int) -> int:
    return number**2


def count(lock: Any, results: Any, length: int) -> None:
    tqdm.set_lock(lock)
    output = io.StringIO()
    for _ in tqdm(range(length), file=output):
        pass
    results.put(f"{length}/{length}" in output.getvalue())


def main() -> None:
    multiprocessing.set_start_method("dragon")
    lock = multiprocessing.RLock()
    tqdm.set_lock(lock)
    results = multiprocessing.SimpleQueue()
    processes = [multiprocessing.Process(target=count, args=(lock, results, 500)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [results.get() for _ in processes] == [True] * 3
    for process in processes:
        process.join()
    output = io.StringIO()
    with multiprocessing.Pool(2, initializer=tqdm.set_lock, initargs=(lock,)) as pool:
        assert list(tqdm(pool.imap(square, range(50)), total=50, file=output)) == [n**2 for n in range(50)]
    assert "50/50" in output.getvalue()
    assert process_map(square, range(10), max_workers=2, file=io.StringIO()) == [n**2 for n in range(10)]
    print("ok")


if __name__ == "__main__":
    main()
