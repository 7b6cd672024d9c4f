"""An LMDB environment, which every process opens itself, also a process forked from one that has it open.

An environment inherited by a fork would use the reader slots of the parent: pages that one of the two reads could be
overwritten meanwhile, and closing or freeing it would free slots of the parent. ("Use an MDB_env* in the process which
opened it, without fork()ing", http://www.lmdb.tech/doc/.)
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
from dragon.runtime.fork_hooks import ProcessLock, in_child

__all__ = ["Environment", "Opened"]

_MAX_READERS = 4096


class Opened:
    """An environment that one process has open.

    Attributes:
        env: LMDB's own object.
        pinned: transactions that keep memory which a value refers to. pinning: the lock with which one is added.
        views: transactions of view().
        start: the address of the file in this process's memory; None until it is known. whole: the memory of the file.
    """

    def __init__(self, folder: Path, map_size: int, is_inherited: bool = False) -> None:
        """Open it. `is_inherited`: the process has its parent's open environment, which it must not use."""
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
        # It is closed but never freed: a forked child would free the spare transactions of its parent.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.env))


class Environment:
    """An environment that all copies of a shard in a process share.

    Attributes:
        opened: the environment that this process has open; None in a forked child that has not opened it.
    """

    def __init__(self, folder: Path, map_size: int) -> None:
        self._folder, self._map_size = folder, map_size
        self._lock = ProcessLock()
        self.opened: Opened | None = Opened(folder, map_size)
        _all.add(self)

    @property
    def here(self) -> Opened:
        """The environment of this process, which is opened if needed."""
        return self.opened or self._open_again()

    def _open_again(self) -> Opened:
        with self._lock:
            if self.opened is None:
                self.opened = Opened(self._folder, self._map_size, is_inherited=True)
            return self.opened

    def close(self) -> None:
        """Close the environment in this process, if it was opened."""
        if self.opened is not None:
            self.opened.env.close()


_all: weakref.WeakSet[Environment] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for environment in list(_all):
        environment.opened = None


in_child(_leave_to_parent)


@contextmanager
def _opened_twice(is_inherited: bool) -> Iterator[None]:
    """Let py-lmdb open a file that, as far as it knows, this process has open already.

    From version 2 on it refuses that, because locks on a file are lost when one of two descriptors is closed; a fork
    has no locks of its parent that could be lost.
    """
    module: ModuleType | None = sys.modules.get("lmdb._envid") if is_inherited else None
    if module is None:
        yield
        return
    keys, module.env_keys = module.env_keys, lambda *_: ()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.env_keys = keys  # type: ignore[attr-defined]
