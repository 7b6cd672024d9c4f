"""joblib with its own process pool, loky, in a program with the start method "dragon"."""

from __future__ import annotations

import multiprocessing

import numpy
from joblib import Parallel, delayed

import dragon  # noqa: F401 - makes "dragon" a start method


def total(array: numpy.ndarray) -> float:
    return float(array.sum())


def main() -> None:
    multiprocessing.set_start_method("dragon")
    queue = multiprocessing.Queue()
    queue.put("started")
    arrays = [numpy.full(200_000, number, dtype=float) for number in range(6)]
    sums = Parallel(n_jobs=2, backend="loky")(delayed(total)(array) for array in arrays)
    assert sums == [200_000.0 * number for number in range(6)]
    assert queue.get() == "started"
    print("ok")


if __name__ == "__main__":
    main()
