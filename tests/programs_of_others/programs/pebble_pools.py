"""pebble: a pool whose workers share one pipe, with tasks that take too long or end their worker."""

import multiprocessing as mp
import os
import time
from concurrent.futures import TimeoutError

from pebble import ProcessExpired, ProcessPool

import dragon  # noqa: F401


def squared(number):
    return number * number


def slow(number):
    time.sleep(100)


def ending(number):
    time.sleep(0.5)  # pebble breaks the pool if it learns of a worker's end before it learns what that worker runs
    os._exit(number)


if __name__ == "__main__":
    mp.set_start_method("dragon")
    with ProcessPool(max_workers=2, context=mp.get_context()) as pool:
        assert list(pool.map(squared, range(50)).result()) == [number * number for number in range(50)]
        print("tasks done")
        try:
            pool.schedule(slow, args=(1,), timeout=1).result()
        except TimeoutError:
            print("time limit done")
        try:
            pool.schedule(ending, args=(3,)).result()
        except ProcessExpired as error:
            print("worker ended with", error.exitcode)
        assert pool.schedule(squared, args=(9,)).result() == 81
        print("next worker done")
