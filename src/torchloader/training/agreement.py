"""Lets all ranks of an application leave at the same iteration."""

from __future__ import annotations

import enum
import os
import socket
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous


def choose_device(device: str | torch.device | None, local_rank: int) -> torch.device:
    """Return the device of a rank. If it is a GPU, it becomes the current one."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device(device)
    if chosen.type == "cuda" and chosen.index is None:
        chosen = torch.device("cuda", local_rank % torch.cuda.device_count())
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return chosen


def make_process_group(device: torch.device, backend: str | None) -> None:
    """Make PyTorch's default process group from torchrun's variables. Waits for all ranks. Without `backend` it is nccl
    if every rank has its own GPU, and gloo otherwise: on CPUs, and if ranks share a GPU, for which nccl fails with
    "Duplicate GPU detected"."""
    if backend is not None or device.type != "cuda":
        dist.init_process_group(backend or "gloo")
        return
    store, rank, size = next(iter(rendezvous("env://")))
    store.set(f"torchloader/device/{rank}", _identity(device))
    devices = store.multi_get([f"torchloader/device/{each}" for each in range(size)])
    chosen = "nccl" if len(set(devices)) == size else "gloo"
    dist.init_process_group(chosen, store=store, rank=rank, world_size=size)


def _identity(device: torch.device) -> str:
    """Return a string that identifies a GPU among all nodes of the job; ranks may number the same one differently."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"{socket.gethostname()} {uuid or (os.environ.get('CUDA_VISIBLE_DEVICES'), device.index)}"


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
