"""An analysis waits for what a simulation writes, key by key."""

from dragon.data.ddict import DDict
from dragon.native import Process


def simulate(ddict):
    height = 100.0
    for step in range(1, 4):
        height *= 0.5
        ddict[f"step {step}"] = height


if __name__ == "__main__":
    with DDict(1, 1, 16 * 2**20, working_set_size=2, wait_for_keys=True) as ddict:
        process = Process(simulate, (ddict,))
        process.start()
        for step in range(1, 4):
            print(step, ddict[f"step {step}"])  # waits until it is written
        process.join()
