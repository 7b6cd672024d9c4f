"""cubed: arrays that are larger than its memory, computed in parts by processes."""

import cubed
import cubed.array_api as xp
import cubed.random
import numpy as np
from cubed.runtime.executors.local import ProcessesExecutor

import dragon  # noqa: F401

if __name__ == "__main__":
    spec = cubed.Spec(work_dir="work", allowed_mem="200MB")
    executor = ProcessesExecutor(max_workers=2, use_processes="dragon")
    a = cubed.random.random((400, 400), chunks=(100, 100), spec=spec)
    b = xp.matmul(a, xp.permute_dims(a, (1, 0)))
    first, product = cubed.compute(a, b, executor=executor)
    assert np.allclose(product, first @ first.T)
    print("product done")
    total = xp.sum(xp.ones((1000, 1000), chunks=(250, 250), spec=spec)).compute(executor=executor)
    assert float(total) == 1_000_000
    print("sum done")
