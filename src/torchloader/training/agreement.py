"""Lets all ranks of an application leave at the same iteration."""

from __future__ import annotations

import enum
from typing import Any

import torch
import torch.distributed as dist

_AGREEMENT_INTERVAL_S = 0.1  # seconds between two agreements
_MOST = 100  # iterations between two agreements


class Wish(enum.IntEnum):
    """The order that a rank received; the largest of all ranks is followed."""

    NOTHING = 0
    SAVE = 1
    PAUSE = 2
    CANCEL = 3


class Agreement:
    """A decision that all ranks make together: all call after() after each iteration, and it returns the same to all.

    Every few iterations the ranks start an all-reduce of their wishes and read the result some iterations later, when
    it has arrived, so training does not wait for it. The number of iterations depends on the iteration time of the
    slowest rank, which is reduced with the wishes. Since an agreement begins and ends at the same iterations on all
    ranks, none can wait for one that has left.

    Args:
        group: the process group of all ranks, on CPUs, used for nothing else; None for a single rank, whose wish is
            followed at once.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self._done = 0
        self._due = 0
        self._interval = 1
        self._pending: tuple[Any, torch.Tensor] | None = None

    def after(self, wish: Wish, seconds: float) -> Wish:
        """Return what all ranks do now. `seconds` is how long this rank's iteration took."""
        if self._group is None:
            return wish
        self._done += 1
        agreed = Wish.NOTHING
        if self._pending is not None:
            if self._done < self._due:
                return agreed
            agreed = self._outcome()
        if agreed < Wish.PAUSE:
            told = torch.tensor([float(wish), seconds], dtype=torch.float64)
            work = dist.all_reduce(told, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
            self._pending = work, told
            self._due = self._done + self._interval
        return agreed

    def close(self) -> None:
        """Complete a pending agreement. All ranks must call this after the same iteration."""
        if self._pending is not None:
            self._outcome()

    def _outcome(self) -> Wish:
        assert self._pending is not None
        work, told = self._pending
        self._pending = None
        work.wait()
        wish, seconds = told.tolist()
        self._interval = max(1, min(_MOST, int(_AGREEMENT_INTERVAL_S / max(seconds, 1e-9))))
        return Wish(int(wish))
