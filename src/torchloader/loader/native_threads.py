"""The threads that libraries start within a worker."""

from __future__ import annotations

import importlib.util
import os
import sys

__all__ = ["use_one_thread"]

# What users set to have another number: for any library, and for OpenBLAS, MKL and BLIS.
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


def use_one_thread() -> None:
    """Make PyTorch and the linear algebra of NumPy compute in one thread: the workers share the cores.

    PyTorch's loader does so for PyTorch alone, and NumPy's library, mostly OpenBLAS, has a thread for each core in each
    worker. Only threadpoolctl can change that once it is loaded. Without that package, or if one of the variables for
    it is set, it stays as it is.
    """
    if sys.modules.get("torch") is not None:  # None where the program wants it not to be imported
        sys.modules["torch"].set_num_threads(1)
    is_set = any(os.environ.get(name) for name in _VARIABLES)
    if "numpy" in sys.modules and not is_set and importlib.util.find_spec("threadpoolctl") is not None:
        import threadpoolctl

        threadpoolctl.threadpool_limits(1, user_api="blas")
