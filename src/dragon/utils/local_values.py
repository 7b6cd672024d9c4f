"""Values that the processes of one node share by name, until the run ends."""

from __future__ import annotations

import os
import time
from hashlib import blake2b
from pathlib import Path

from dragon.files import whole_file, write_bytes
from dragon.runtime.arguments import checked_seconds
from dragon.runtime.run import this_run

__all__ = ["get_local_kv", "set_local_kv"]

_POLL_S = 0.01


def _file(key: str) -> Path:
    if not isinstance(key, str):
        raise TypeError(f"a key is a string, not {key!r}")
    folder = this_run().folder / "values"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / blake2b(os.fsencode(key), digest_size=16).hexdigest()


def set_local_kv(key: str, value: str, timeout: float | None = None) -> None:
    """Set a value for all processes of this node. `timeout` has no effect. Raises TypeError if the key or the value is
    not a string."""
    if not isinstance(value, str):
        raise TypeError(f"a value is a string, not {value!r}")
    with whole_file(_file(key)) as file:  # atomic: a concurrent reader gets the old value, or this one
        write_bytes(file, value.encode("utf-8", "surrogatepass"))


def get_local_kv(key: str, timeout: float | None = None) -> str:
    """Return the value that a process of this node has set; waits for it up to `timeout` seconds. Raises KeyError if
    there is none."""
    timeout = checked_seconds("timeout", timeout)
    end = time.monotonic() + (timeout or 0)
    path = _file(key)
    while True:
        try:
            return path.read_bytes().decode("utf-8", "surrogatepass")
        except FileNotFoundError:
            if time.monotonic() >= end:
                raise KeyError(key) from None
            time.sleep(_POLL_S)
