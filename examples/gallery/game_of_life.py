"""Conway's game of life: each process has a strip, and exchanges its edges with its neighbours by queues."""

import numpy as np

from dragon.native import Process, Queue

PARTS, ROWS, COLUMNS, STEPS = 4, 40, 240, 120


def live(part, strip, edges, results):
    above, below = (part - 1) % PARTS, (part + 1) % PARTS
    for _ in range(STEPS):
        edges[above][1].put(strip[0].copy())
        edges[below][0].put(strip[-1].copy())
        whole = np.vstack([edges[part][0].get(), strip, edges[part][1].get()])
        around = sum(np.roll(whole, (y, x), (0, 1)) for y in (-1, 0, 1) for x in (-1, 0, 1)) - whole
        strip = ((around == 3) | ((whole == 1) & (around == 2)))[1:-1].astype(np.uint8)
    results.put((part, strip))


if __name__ == "__main__":
    import matplotlib.image  # only this process draws

    world = (np.random.default_rng(7).random((PARTS * ROWS, COLUMNS)) < 0.3).astype(np.uint8)
    edges = [(Queue(), Queue()) for _ in range(PARTS)]
    results = Queue()
    strips = np.split(world, PARTS)
    processes = [Process(live, (part, strips[part], edges, results)) for part in range(PARTS)]
    for process in processes:
        process.start()
    world = np.vstack([strip for _, strip in sorted((results.get() for _ in processes), key=lambda r: r[0])])
    for process in processes:
        process.join()
    matplotlib.image.imsave("game_of_life.png", world.repeat(2, 0).repeat(2, 1), cmap="Greens")
    print(world.shape, "alive:", int(world.sum()))
