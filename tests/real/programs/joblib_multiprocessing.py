"""joblib with the backend "multiprocessing", whose pool and queues take our context."""

from __future__ import annotations

import multiprocessing

import numpy
import pytest
from joblib import Parallel, delayed, parallel_config

import dragon  # noqa: F401 - makes "dragon" a start method


def total(array: numpy.ndarray) -> float:
    return float(array.sum())


def fail(number: int) -> int:
    if number == 3:
        raise ArithmeticError("three")
    return number


def main() -> None:
    multiprocessing.set_start_method("dragon")
    # Over a megabyte joblib passes arrays as files that are mapped into memory.
    arrays = [numpy.full(200_000, number, dtype=float) for number in range(6)]
    with parallel_config(backend="multiprocessing", n_jobs=2):
        assert Parallel()(delayed(total)(array) for array in arrays) == [200_000.0 * number for number in range(6)]
        assert Parallel()(delayed(pow)(number, 2) for number in range(100)) == [number**2 for number in range(100)]
        with pytest.raises(ArithmeticError, match="three"):
            Parallel()(delayed(fail)(number) for number in range(6))
    print("ok")


if __name__ == "__main__":
    main()
