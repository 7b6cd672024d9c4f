"""Workers of a loader without a given start method: as with PyTorch, they use that of multiprocessing."""

from __future__ import annotations

import sys

import pytest

from conftest import Site

GLOBALS = """
import multiprocessing, sys

sys.modules["torch"] = None  # nothing here needs it, and every process would import it
from torchloader import ElasticDataLoader

words = []

class Words:
    def __len__(self): return 2
    def __getitem__(self, index): return list(words)

class Streamed:
    def __iter__(self): return iter([list(words)])

if __name__ == "__main__":
    words += ["one", "two"]
    print("begun", end=" ")
    loaders = [ElasticDataLoader(Words(), 2, num_workers=2, collate_fn=list),
               ElasticDataLoader(Streamed(), 2, num_workers=2, collate_fn=list)]
    if sys.argv[1] != "none":
        multiprocessing.set_start_method(sys.argv[1])
    for loader in loaders:
        with loader:
            print(*loader, end=" ")
    print(multiprocessing.get_start_method(allow_none=True))
"""


@pytest.mark.parametrize("method", ["none", "fork", "forkserver", "spawn", "dragon"])
def test_workers_have_globals_of_the_program_if_the_start_method_forks(site: Site, method: str) -> None:
    forks = method == "fork" or (method == "none" and sys.version_info < (3, 14))
    words = "['one', 'two']" if forks else "[]"
    done = site.python(GLOBALS, method)
    assert (done.stdout, done.stderr) == (
        f"begun [{words}, {words}] [{words}] [{words}] {'None' if method == 'none' else method}\n",
        "",
    )


MEMORY = """
import multiprocessing, os, sys, time

sys.modules["torch"] = None  # nothing here needs it, and every process would import it
import numpy as np
from torchloader import ElasticDataLoader

MIB = 1 << 20

def own():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))

class Large:
    numbers = None
    def __len__(self): return 16
    def __getitem__(self, index):
        total = int(self.numbers.sum())
        time.sleep(0.05)
        return os.getpid(), total, own()

if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    dataset = Large()
    before = own()
    dataset.numbers = np.ones(192 * MIB, np.uint8)
    with ElasticDataLoader(dataset, 1, num_workers=4, collate_fn=list) as loader:
        told = [sample for [sample] in loader]
    assert {total for _, total, _ in told} == {192 * MIB}
    workers = {pid: memory for pid, _, memory in told}
    print(len(workers), (own() + sum(workers.values()) - before) // MIB)
"""


def test_forked_workers_share_a_dataset_in_memory(site: Site) -> None:
    done = site.python(MEMORY)
    workers, memory = map(int, done.stdout.split())
    assert workers == 4
    assert memory < 2 * 192, done.stderr


NOT_SENT = """
import multiprocessing, sys, threading

sys.modules["torch"] = None  # nothing here needs it, and every process would import it
from torchloader import ElasticDataLoader

class Paths:
    def __init__(self):
        self.paths = [f"image_{number}.jpg" for number in range(100_000)]
        self.lock, self.numbers = threading.Lock(), (number for number in range(8))
    def __len__(self): return 8
    def __getitem__(self, index):
        with self.lock:
            return self.paths[index]
    def __reduce__(self): raise TypeError("a dataset of forked workers is not pickled")

if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    with ElasticDataLoader(Paths(), 4, num_workers=2, collate_fn=list, timeout=60) as loader:
        for _ in range(2):
            print(*loader)
"""


def test_a_dataset_of_forked_workers_is_not_pickled(site: Site) -> None:
    done = site.python(NOT_SENT)
    batches = [[f"image_{number}.jpg" for number in range(start, start + 4)] for start in (0, 4)]
    assert done.stdout == f"{batches[0]} {batches[1]}\n" * 2, done.stderr
