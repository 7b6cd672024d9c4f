"""Micro-measurements through the public API alone: one file for this project, dragonhpc and the standard library.

    dragon -s benchmarks/micro.py NAME...          under this project or under dragonhpc
    python benchmarks/micro.py --stdlib NAME...    the stdlib's own processes (fork)

Each line printed is JSON: {"name": ..., "value": ..., "unit": ..., "better": "lower" | "higher"}.
"""

import json
import multiprocessing as mp
import sys
import time

STDLIB = "--stdlib" in sys.argv


def say(name, value, unit, better):
    print(json.dumps({"name": name, "value": value, "unit": unit, "better": better}), flush=True)


def clock(n, step):
    start = time.perf_counter()
    for i in range(n):
        step(i)
    return (time.perf_counter() - start) / n * 1e6


def echo(a, b, n):
    for _ in range(n):
        b.put(a.get())


def sink(queue, n, done):
    for _ in range(n):
        queue.get()
    done.put(None)


def nothing(x=None):
    return x


def queue_round_trip():
    a, b, n = mp.Queue(), mp.Queue(), 3000
    p = mp.Process(target=echo, args=(a, b, n + 100))
    p.start()
    for _ in range(100):
        a.put(1), b.get()
    say("queue round trip", clock(n, lambda i: (a.put(1), b.get())), "us", "lower")
    p.join()


def _queue_rate(size, n):
    queue, done = mp.Queue(), mp.Queue()
    payload = b"x" * size
    p = mp.Process(target=sink, args=(queue, n + 1, done))
    p.start()
    queue.put(payload)
    time.sleep(1)
    start = time.perf_counter()
    for _ in range(n):
        queue.put(payload)
    done.get()
    took = time.perf_counter() - start
    p.join()
    say(f"queue, messages of {size} B", n / took, "1/s", "higher")


def queue_rate():
    for size, n in ((10, 30000), (4096, 20000), (1 << 20, 1000)):
        _queue_rate(size, n)


def numpy_queue():
    import numpy as np

    queue, done, n = mp.Queue(), mp.Queue(), 200
    array = np.zeros(1 << 20)
    p = mp.Process(target=sink, args=(queue, n + 1, done))
    p.start()
    queue.put(array)
    time.sleep(1)
    start = time.perf_counter()
    for _ in range(n):
        queue.put(array)
    done.get()
    say("queue, numpy arrays of 8 MiB", n * array.nbytes / (time.perf_counter() - start) / 1e9, "GB/s", "higher")
    p.join()


def start_rate():
    n = 40
    start = time.perf_counter()
    ps = [mp.Process(target=nothing) for _ in range(n)]
    [p.start() for p in ps]
    [p.join() for p in ps]
    say("processes started and joined", n / (time.perf_counter() - start), "1/s", "higher")


def pool():
    start = time.perf_counter()
    workers = mp.Pool(2)
    workers.map(nothing, range(4))
    say("pool of 2 ready", (time.perf_counter() - start) * 1e3, "ms", "lower")
    n = 4000
    start = time.perf_counter()
    workers.map(nothing, range(n), chunksize=1)
    say("pool.map, one task a chunk", n / (time.perf_counter() - start), "1/s", "higher")
    say("pool.apply", clock(500, lambda i: workers.apply(nothing, (1,))), "us", "lower")
    workers.close()
    workers.join()


def lock():
    one = mp.Lock()
    say("lock acquire + release", clock(20000, lambda i: (one.acquire(), one.release())), "us", "lower")


def group():
    if STDLIB:
        return
    from dragon.native.process import ProcessTemplate
    from dragon.native.process_group import ProcessGroup

    for label, template, n in (
        ("group of 32 Python functions", ProcessTemplate(target=nothing), 32),
        ("group of 64 executables", ProcessTemplate(target="/bin/true", args=[]), 64),
    ):
        start = time.perf_counter()
        pg = ProcessGroup()
        pg.add_process(nproc=n, template=template)
        pg.init(), pg.start(), pg.join(), pg.close()
        say(label, n / (time.perf_counter() - start), "1/s", "higher")


ALL = [queue_round_trip, queue_rate, numpy_queue, start_rate, pool, lock, group]

if __name__ == "__main__":
    if not STDLIB:
        import dragon  # noqa: F401  (registers the start method)

        mp.set_start_method("dragon")
    else:
        mp.set_start_method("fork")
    wanted = [a for a in sys.argv[1:] if not a.startswith("-")]
    for measure in ALL:
        if not wanted or measure.__name__ in wanted:
            measure()
