"""Count words: each worker adds to shared counters, and each addition is atomic."""

from dragon.data.ddict import DDict
from dragon.native import Pool
from dragon.native.machine import System

TEXT = "the cat and the dog and the bird " * 30


def count(job):
    counters, words = job
    for word in words:
        counters.fetch_add(word, 1)


if __name__ == "__main__":
    words = TEXT.split()
    parts = [words[start::4] for start in range(4)]
    nodes = System().nnodes
    with DDict(1, nodes, nodes * 16 * 2**20) as counters, Pool(4) as pool:
        pool.map(count, [(counters, part) for part in parts])
        for word, number in sorted(counters.items()):
            print(word, number)
