"""A job without PyTorch: it loads samples, computes, follows the orders of its application master and saves
its position.

    trainer.py ITERATIONS LATENCY STEP [DEED]

LATENCY and STEP are the seconds of loading a sample and of an iteration. A DEED is done after the fifth iteration, or
before the first if it says so. Deeds that wait do so until the output folder has a file `go`. DEED can also be the
start method of the loading workers.
"""

import base64
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from queue import Empty

from dragon.native.queue import Queue
from torchloader.training.protocol import (
    Cancel,
    Leaves,
    Pause,
    Progress,
    Resize,
    Resized,
    Started,
    decode_order,
    encode,
)

BEAT = 0.3


class Samples:
    def __init__(self, latency):
        self.latency = latency

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(self.latency)
        return index


def start_method():
    told = [word for word in sys.argv[4:] if word in multiprocessing.get_all_start_methods()]
    return {"multiprocessing_context": told[0]} if told else {}


def wait(folder):
    while not (folder / "go").exists():
        time.sleep(0.02)


def do(deed, folder, rank):
    if deed in ("wait", "wait and raise"):
        wait(folder)
    if deed in ("raise", "wait and raise") or (deed == "rank 0 raises" and rank == 0):
        raise RuntimeError("the gradient is not a number")
    if deed in ("hang", "rank 0 raises"):
        time.sleep(1000)


def main():
    if sys.argv[4:] == ["crash"]:
        sys.exit("no such data set")
    iterations, latency, step = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    orders, reports = (
        Queue.attach(base64.b64decode(os.environ[f"TORCHLOADER_{what}"])) for what in ("ORDERS", "REPORTS")
    )
    rank, workers = int(os.environ["RANK"]), int(os.environ["TORCHLOADER_WORKERS"])
    folder = Path(os.environ["TORCHLOADER_FOLDER"])
    if sys.argv[4:] == ["wait at first"]:
        wait(folder)
    sys.modules["torch"] = None  # it takes its time, which counts as silence of the rank on a busy machine
    from torchloader import ElasticDataLoader

    place = folder / f"place-{os.environ['TORCHLOADER_APPLICATION']}-{rank}.json"
    new = place.with_suffix(".new")
    loader = ElasticDataLoader(Samples(latency), 4, num_workers=workers, collate_fn=list, seed=1, **start_method())
    done = 0
    if place.exists():
        state, done = json.loads(place.read_text())
        loader.load_state_dict(state)

    def say(report):
        reports.put(encode(report))

    say(Started(rank, done, workers))
    before, beat = loader.counters, time.monotonic()
    with (folder / f"samples-{os.environ['TORCHLOADER_APPLICATION']}-{rank}.txt").open("a") as samples:
        for batch in loader:
            if done == iterations:
                break
            time.sleep(step)
            done += 1
            print(*batch, sep="\n", file=samples, flush=True)
            new.write_text(json.dumps([loader.state_dict(), done]))
            new.replace(place)
            try:
                order = decode_order(orders.get_nowait())
            except Empty:
                order = None
            if isinstance(order, Resize):
                loader.resize(order.workers)
                say(Resized(rank, order.workers, 0.0))
            elif isinstance(order, Pause):
                say(Leaves(rank, done, "paused"))
                return
            elif isinstance(order, Cancel):
                say(Leaves(rank, done, "cancelled"))
                return
            if time.monotonic() - beat > BEAT:
                now, beat = loader.counters, time.monotonic()
                waited, computed = now.waited - before.waited, now.computed - before.computed
                told = now.samples - before.samples, waited, computed, now.workers, now.service or None
                say(Progress(rank, done, *told))
                before = now
            if done == 5 and sys.argv[4:]:
                do(sys.argv[4], folder, rank)
    say(Leaves(rank, done, "finished"))


if __name__ == "__main__":
    main()
