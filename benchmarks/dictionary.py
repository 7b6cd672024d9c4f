"""Puts and gets of one dictionary or store: microseconds for one client, and how many a second for several.

    python benchmarks/dictionary.py dragon|lmdb|redis|manager [--sizes 16 1024 ...] [--clients 1 2 4 8]
    dragon -s benchmarks/dictionary.py dragonhpc            with dragonhpc's own `dragon`
    dragon --nodes 2 benchmarks/dictionary.py dragon --remote    every key on the other node
    dragon --nodes 4 benchmarks/dictionary.py dragon --weak      a writer on every node, of keys of its own node

One line of JSON for each figure. `memcpy` copies between two pieces of warm memory, `dragon-view` and
`dragon-frozen` look without a copy.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time

import numpy as np

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("side", choices=["dragon", "dragonhpc", "lmdb", "redis", "manager", "memcpy"])
parser.add_argument("--sizes", type=int, nargs="*", default=[16, 1024, 65536, 2**20, 64 * 2**20])
parser.add_argument("--clients", type=int, nargs="*", default=[1, 2, 4, 8])
parser.add_argument("--remote", action="store_true")
parser.add_argument("--weak", action="store_true")

MEMORY = 2**30


class Lmdb:
    def __init__(self, folder):
        import lmdb

        self.env = lmdb.open(folder, map_size=MEMORY, writemap=True, sync=False, metasync=False, meminit=False)

    def put(self, key, value):
        with self.env.begin(write=True) as transaction:
            transaction.put(key.encode(), value)

    def get(self, key):
        with self.env.begin(buffers=True) as transaction:
            return bytes(transaction.get(key.encode()))


class Redis:
    def __init__(self, path):
        import redis

        self.client = redis.Redis(unix_socket_path=path)
        self.put, self.get = self.client.set, self.client.get


class Mapping:
    def __init__(self, mapping):
        self.mapping = mapping
        self.put, self.get = mapping.__setitem__, mapping.__getitem__


class Copy:
    def __init__(self):
        self.memory = {}

    def put(self, key, value):
        if len(value) not in self.memory:
            self.memory[len(value)] = memoryview(bytearray(len(value)))
        self.memory[len(value)][:] = value

    def get(self, key):
        raise KeyError(key)


def timed(operation, least=0.3):
    """Return the seconds of one operation: the median over rounds."""
    operation()
    start = time.perf_counter()
    operation()
    count = max(1, int(least / 5 / max(time.perf_counter() - start, 1e-7)))
    rounds = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            operation()
        rounds.append((time.perf_counter() - start) / count)
    return statistics.median(rounds)


def report(side, what, size, value, unit):
    print(json.dumps({"side": side, "what": what, "size": size, "value": value, "unit": unit}), flush=True)


def measure(side, store, sizes):
    for size in sizes:
        value = os.urandom(size) if side != "dragon-array" else np.frombuffer(os.urandom(size), np.uint8)
        report(side, "put", size, timed(lambda value=value: store.put("key", value)) * 1e6, "us")
        try:
            report(side, "get", size, timed(lambda: store.get("key")) * 1e6, "us")
        except KeyError:
            continue


def write(store, index, count, barrier):
    value = os.urandom(16)
    for key in range(10):
        store.put(f"{index}-{key}", value)
    barrier.wait()
    for number in range(count):
        store.put(f"{index}-{number % 10}", value)


def several(side, mp, store, counts, each):
    for clients in counts:
        barrier = mp.Barrier(clients + 1)
        processes = [mp.Process(target=write, args=(store, index, each, barrier)) for index in range(clients)]
        for process in processes:
            process.start()
        barrier.wait()
        start = time.perf_counter()
        for process in processes:
            process.join()
        report(side, f"puts of {clients} clients", 16, clients * each / (time.perf_counter() - start), "per second")


def remote(ddict, sizes):
    other = next(i for i in range(2) if i not in ddict.local_managers)
    there = ddict.manager(other)
    measure("dragon-remote", Mapping(there), sizes)
    there["key"] = b"x" * 16
    seconds = timed(lambda: there.get_many(["key"] * 64)) / 64
    report("dragon-remote", "get, 64 under way", 16, 1 / seconds, "per second")


def write_locally(ddict, count, barrier):
    mine = ddict.manager(ddict.local_manager)
    barrier.wait()
    for number in range(count):
        mine[number % 10] = b"x" * 16
    barrier.wait()


def looked_at(ddict):
    size = 64 * 2**20
    ddict["view"] = bytes(size)

    def view():
        with ddict.view("view") as memory:
            return memory[0]

    def change():
        ddict["other"] = 1

    report("dragon-view", "get", size, timed(view) * 1e6, "us")
    report("dragon-view", "get after a change", size, timed(lambda: (change(), view())) * 1e6, "us")
    ddict["array"] = np.zeros(size, np.uint8)
    ddict.freeze()
    report("dragon-frozen", "get", size, timed(lambda: ddict["array"]) * 1e6, "us")
    ddict.unfreeze()


def weak(ddict_class, mp, each=50000):
    from dragon.infrastructure.policy import Policy
    from dragon.native.machine import System
    from dragon.native.process import Process

    hosts = System().nodes
    ddict, barrier = ddict_class(1, len(hosts), len(hosts) * 2**26), mp.Barrier(len(hosts) + 1)
    for host in hosts:
        policy = Policy(placement=Policy.Placement.HOST_ID, host_id=host)
        Process(write_locally, (ddict, each, barrier), policy=policy).start()
    barrier.wait()
    start = time.perf_counter()
    barrier.wait()
    rate = len(hosts) * each / (time.perf_counter() - start)
    report("dragon", f"puts of a writer on each of {len(hosts)} nodes", 16, rate, "per second")


def main():
    options = parser.parse_args()
    side, sizes = options.side, options.sizes
    if side in {"dragonhpc", "dragon"}:
        import multiprocessing as mp

        import dragon  # noqa: F401
        from dragon.data.ddict import DDict

        mp.set_start_method("dragon")
        if options.weak:
            weak(DDict, mp)
            return
        if options.remote:
            remote(DDict(1, 2, 2 * MEMORY), sizes)
            return
        ddict = DDict(1, 1, MEMORY)
        measure(side, Mapping(ddict), sizes)
        if side == "dragon":
            measure("dragon-array", Mapping(ddict), [size for size in sizes if size >= 2**20])
            looked_at(ddict)
        several(side, mp, Mapping(ddict), options.clients, 20000 if side == "dragon" else 100)
        ddict.destroy()
        return
    import multiprocessing as mp

    folder = tempfile.mkdtemp(dir="/dev/shm")
    server = None
    try:
        if side == "lmdb":
            store = Lmdb(folder)
        elif side == "memcpy":
            store = Copy()
        elif side == "manager":
            store = Mapping(mp.Manager().dict())
        else:
            path = f"{folder}/redis"
            server = subprocess.Popen(
                ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder],
                stdout=subprocess.DEVNULL,
            )
            while not os.path.exists(path):
                time.sleep(0.01)
            store = Redis(path)
        measure(side, store, sizes)
        if side in ("redis", "manager"):
            several(side, mp.get_context("fork"), store, options.clients, 2000)
    finally:
        if server is not None:
            server.kill()
            server.wait()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
