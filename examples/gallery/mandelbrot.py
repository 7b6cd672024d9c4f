"""The Mandelbrot set: a worker computes a row of the picture."""

import numpy as np

from dragon.native import Pool

WIDTH, HEIGHT, STEPS = 480, 320, 60


def row(y):
    c = np.linspace(-2.2, 0.8, WIDTH) + 1j * (2 * y / HEIGHT - 1)
    z, steps = np.zeros_like(c), np.zeros(WIDTH)
    for _ in range(STEPS):
        inside = abs(z) <= 2
        z[inside] = z[inside] ** 2 + c[inside]
        steps += inside
    return steps


if __name__ == "__main__":
    import matplotlib.image  # only this process draws

    with Pool(4) as pool:
        picture = np.array(pool.map(row, range(HEIGHT)))
    matplotlib.image.imsave("mandelbrot.png", picture, cmap="magma")
    print(picture.shape, "points of the set:", round(float((picture == STEPS).mean()), 2))
