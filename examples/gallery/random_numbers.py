"""Pi by random points: every process has a random generator of its own, made from one seed."""

import numpy as np

from dragon.native import Pool


def throw(seed, points=20_000):
    x, y = np.random.default_rng(seed).random((2, points))
    return int((x * x + y * y < 1).sum()) / points * 4


if __name__ == "__main__":
    import matplotlib.pyplot as plt  # only this process draws

    seeds = np.random.SeedSequence(2024).spawn(100)
    with Pool(4) as pool:
        estimates = np.array(pool.map(throw, seeds))
    means = estimates.cumsum() / np.arange(1, 101)
    plt.figure(figsize=(6, 4), dpi=80)
    plt.plot(estimates, ".", label="one process's")
    plt.plot(means, label="mean so far")
    plt.axhline(np.pi, color="black", linewidth=0.5)
    plt.legend()
    plt.savefig("random_numbers.png")
    print(f"{means[-1]:.3f}", "all different:", len(set(estimates)) > 50)
