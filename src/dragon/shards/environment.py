"""An LMDB environment, which every process opens for itself, also one that was forked from a process that has it open.

In an environment that a fork has from its parent it would read in the places of the parent's readers: what either of
them looks at could be overwritten meanwhile, and to close or free it would free places of the parent. ("Use an MDB_env*
in the process which opened it, without fork()ing", http://www.lmdb.tech/doc/.)
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

import lmdb

from dragon.infrastructure.private import checked_folder
from dragon.runtime.fork_hooks import in_child
from dragon.runtime.process_lock import ProcessLock

__all__ = ["Environment", "Opened"]

_MAX_READERS = 4096


class Opened:
    """An environment as one process has it open.

    Attributes:
        env: LMDB's own object.
        pinned: transactions that keep what somebody looks into. pinning: the lock with which one is added.
        views: transactions of view().
        start: where in this process's memory the file begins, once that is known. whole: all of it.
    """

    def __init__(self, folder: Path, map_size: int, is_inherited: bool = False) -> None:
        """`is_inherited`: the parent of this process has it open, and so has this one, without any use."""
        self.pinned: weakref.WeakSet[Any] = weakref.WeakSet()
        self.pinning = Lock()
        self.views: weakref.WeakSet[Any] = weakref.WeakSet()
        self.start: int | None = None
        self.whole: memoryview | None = None
        with checked_folder(folder), _opened_twice(is_inherited):
            self.env = lmdb.open(
                str(folder),
                map_size=map_size,
                writemap=True,
                sync=False,
                metasync=False,
                map_async=True,
                meminit=False,
                readahead=False,
                max_readers=_MAX_READERS,
                max_spare_txns=4,
            )
        # It is never freed, but closed: a fork, however it ends, would free the spare transactions of its parent.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.env))


class Environment:
    """One environment, for all copies of a shard that a process makes.

    Attributes:
        opened: as this process has it open; None in a child that was forked and has not.
    """

    def __init__(self, folder: Path, map_size: int) -> None:
        self._folder, self._map_size = folder, map_size
        self._lock = ProcessLock()
        self.opened: Opened | None = Opened(folder, map_size)
        _all.add(self)

    @property
    def here(self) -> Opened:
        """The environment as this process has it open, from now on if it has not yet."""
        return self.opened or self._open_again()

    def _open_again(self) -> Opened:
        with self._lock:
            if self.opened is None:
                self.opened = Opened(self._folder, self._map_size, is_inherited=True)
            return self.opened

    def close(self) -> None:
        """Close it in this process, if this one has opened it."""
        if self.opened is not None:
            self.opened.env.close()


_all: weakref.WeakSet[Environment] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for environment in list(_all):
        environment.opened = None


in_child(_leave_to_parent)


@contextmanager
def _opened_twice(is_inherited: bool) -> Iterator[None]:
    """Have py-lmdb open what this process has open, as far as it knows. From version 2 on it refuses that, since locks
    on a file are lost when one of two descriptors is closed; a fork has no locks of its parent's that it could lose."""
    module: ModuleType | None = sys.modules.get("lmdb._envid") if is_inherited else None
    if module is None:
        yield
        return
    keys, module.env_keys = module.env_keys, lambda *_: ()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.env_keys = keys  # type: ignore[attr-defined]
