"""A worker that is killed costs one task: its error says so, the others have their results, and nothing hangs."""

import os
import signal

from dragon.native import Pool
from dragon.native.workers import WorkerLostError


def invert(x):
    if x == 3:
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
    return 1 / x


if __name__ == "__main__":
    with Pool(2) as pool:
        for x, result in [(x, pool.apply_async(invert, (x,))) for x in (1, 2, 3, 4)]:
            try:
                print(x, result.get(timeout=30))
            except WorkerLostError as error:
                print(x, type(error).__name__)
