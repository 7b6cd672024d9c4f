"""A parameter sweep: the values that x -> r x (1 - x) comes to, for many r."""

import numpy as np

from dragon.native import Pool


def settle(r):
    x, seen = 0.5, []
    for step in range(300):
        x = r * x * (1 - x)
        if step >= 200:
            seen.append(x)
    return r, seen


if __name__ == "__main__":
    import matplotlib.pyplot as plt  # only this process draws

    with Pool(4) as pool:
        results = pool.map(settle, np.linspace(2.6, 4, 600), chunksize=50)
    plt.figure(figsize=(6, 4), dpi=80)
    for r, seen in results:
        plt.plot([r] * len(seen), seen, ",", color="tab:blue")
    plt.xlabel("r")
    plt.ylabel("x")
    plt.savefig("parameter_sweep.png")
    for r, seen in results[::200]:
        print(f"r = {r:.2f}: {len({round(x, 6) for x in seen})} values")
