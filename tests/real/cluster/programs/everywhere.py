"""Queues, locks, barriers and pools of `multiprocessing`, shared by processes on all nodes."""

import hashlib
import multiprocessing as mp
import os

import dragon  # noqa: F401  (registers the start method)
from dragon.native.machine import System, current

ROUNDS = 100
LARGE = 3 * 2**20


def take_part(lock, total, barrier, small, large):
    barrier.wait(60)
    for _ in range(ROUNDS):
        with lock:
            total.value += 1
        small.put(os.getpid())
    data = os.urandom(LARGE)
    large.put((hashlib.sha256(data).hexdigest(), data))


def meet(barrier):
    barrier.wait(60)
    return current().hostname, os.getpid()


if __name__ == "__main__":
    mp.set_start_method("dragon")
    count = 2 * System().nnodes
    lock, total, barrier = mp.Lock(), mp.Value("i", 0, lock=False), mp.Barrier(count)
    small, large = mp.Queue(), mp.Queue()
    workers = [mp.Process(target=take_part, args=(lock, total, barrier, small, large)) for _ in range(count)]
    for worker in workers:
        worker.start()
    for _ in range(count):
        digest, data = large.get(timeout=60)
        assert hashlib.sha256(data).hexdigest() == digest
        assert len(data) == LARGE
    for _ in range(count * ROUNDS):
        small.get(timeout=60)
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * count
    assert total.value == count * ROUNDS
    with mp.Pool(count) as pool:
        # Each of these waits for all others, so each has a worker of its own.
        assert len(set(pool.map(meet, [barrier] * count, chunksize=1))) == count
    print("ok")
