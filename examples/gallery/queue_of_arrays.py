"""Large arrays through a queue: one copy into shared memory, and none out of it on the same node."""

import numpy as np

from dragon.native import Process, Queue


def normalise(source, target):
    while (image := source.get()) is not None:
        image -= image.mean()  # the memory is this process's now
        target.put(image)


if __name__ == "__main__":
    source, target = Queue(), Queue()
    process = Process(normalise, (source, target))
    process.start()
    for seed in range(3):
        source.put(np.random.default_rng(seed).random((1000, 1000)))
        image = target.get()
        print(image.shape, f"{abs(image.mean()):.6f}")
    source.put(None)
    process.join()
