"""A process is killed while it holds a lock: the next one that asks has it, with a warning."""

import os
import signal
import warnings

from dragon.native import Lock, Process


def die_with(lock):
    lock.acquire()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    lock = Lock()
    process = Process(die_with, (lock,))
    process.start()
    print("exit code", process.join())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        print("acquired:", lock.acquire(timeout=30))
    print(caught[0].category.__name__)
