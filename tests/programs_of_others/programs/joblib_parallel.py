"""joblib: its three back ends, with results in order, an array that the workers share, and an error of a task."""

import multiprocessing as mp
import os

import numpy as np
from joblib import Parallel, delayed, parallel_config

import dragon  # noqa: F401


def root(number):
    return os.getpid(), number**0.5


def column_sum(table, column):
    return float(table[:, column].sum())


def fail(number):
    raise ValueError(f"cannot do {number}")


if __name__ == "__main__":
    mp.set_start_method("dragon")
    table = np.ones((200_000, 4))  # large enough to be mapped from a file by the workers
    for backend in ("multiprocessing", "loky", "threading"):
        with parallel_config(backend=backend, n_jobs=2):
            done = Parallel()(delayed(root)(i**2) for i in range(40))
            sums = Parallel(max_nbytes="1M")(delayed(column_sum)(table, i) for i in range(4))
            if backend != "multiprocessing":  # which has no generators
                generated = Parallel(return_as="generator")(delayed(root)(i**2) for i in range(10))
                assert [value for _, value in generated] == list(range(10))
            try:
                Parallel()(delayed(fail)(i) for i in range(4))
            except ValueError as error:
                said = str(error)
        assert [value for _, value in done] == list(range(40))
        assert sums == [200_000.0] * 4
        assert said.startswith("cannot do")
        assert (os.getpid() in {pid for pid, _ in done}) == (backend == "threading")
        print(backend, "done")
