"""tqdm: a map over processes with a bar, and bars that workers write with a shared lock."""

import multiprocessing as mp
import sys
from concurrent.futures import ProcessPoolExecutor

from tqdm import tqdm
from tqdm.contrib.concurrent import process_map

import dragon  # noqa: F401


def square(number):
    return number**2


def count(position):
    for _ in tqdm(range(50), desc=f"bar {position}", position=position, file=sys.stderr):
        pass
    return position


if __name__ == "__main__":
    mp.set_start_method("dragon")
    assert process_map(square, range(100), max_workers=2, chunksize=5) == [n**2 for n in range(100)]
    print("process_map done")
    tqdm.set_lock(mp.RLock())
    with mp.Pool(2, initializer=tqdm.set_lock, initargs=(tqdm.get_lock(),)) as pool:
        assert list(tqdm(pool.imap(square, range(200), 10), total=200)) == [n**2 for n in range(200)]
        assert sorted(pool.imap_unordered(count, range(3))) == [0, 1, 2]
    print("pool done")
    with ProcessPoolExecutor(2) as executor:
        assert list(tqdm(executor.map(square, range(20)), total=20)) == [n**2 for n in range(20)]
    print("executor done")
