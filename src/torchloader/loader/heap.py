"""How the C library keeps the memory that a loading worker frees."""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_freed_memory"]

# Of mallopt(), in <malloc.h>; the GNU C Library's manual, "Malloc Tunable Parameters".
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_KEPT = 512 << 20  # bytes at the end of the heap


def keep_freed_memory() -> None:
    """Keep up to 512 MiB of freed memory in this process, for the next batch.

    By default the GNU C Library returns large blocks to the system at once. A worker that makes one large batch after
    another then gets new pages for each, which the kernel clears: that takes longer than to make the batch. Does
    nothing with another C library, or if the environment says how the library is to allocate.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
