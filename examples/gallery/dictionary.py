"""A dictionary in the memory of all nodes, filled by a pool."""

from dragon.data.ddict import DDict
from dragon.native import Pool
from dragon.native.machine import System


def square(job):
    ddict, number = job
    ddict[number] = number**2


if __name__ == "__main__":
    nodes = System().nnodes
    with DDict(1, nodes, nodes * 16 * 2**20) as ddict, Pool(4) as pool:
        pool.map(square, [(ddict, number) for number in range(100)])
        print(len(ddict), ddict[12], 200 in ddict)
