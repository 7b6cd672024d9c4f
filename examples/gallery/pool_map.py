"""A pool of multiprocessing, whose start method is "dragon"; its workers go over all nodes of the run."""

import multiprocessing as mp

import dragon


def square(x):
    return x * x


if __name__ == "__main__":
    mp.set_start_method("dragon")
    with mp.Pool(4) as pool:
        print(pool.map(square, range(10)))
