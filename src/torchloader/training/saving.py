"""The state of a whole training program: gathered from its ranks, saved by one of them, restored on all."""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from torchloader.training.checkpoint import CheckpointError, Checkpoints, Saved


def random_state() -> dict[str, Any]:
    """Return the state of Python, NumPy if it is imported, PyTorch, and this process's GPU if it uses one."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
        "torch": torch.get_rng_state(),
    }
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [kind, torch.tensor(keys.tolist(), dtype=torch.int64), position, has_gauss, cached]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Restore a random state. Parts of modules that are not imported, or not used, are ignored."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    torch.set_rng_state(state["torch"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        kind, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((kind, keys.numpy().astype("uint32"), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.set_rng_state(state["cuda"])


def pack(state: dict[str, Any]) -> Tensor:
    """Serialize a state to bytes that ranks can send to each other."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def unpack(data: Tensor) -> dict[str, Any]:
    """Deserialize what pack() returned. Executes no code from the data."""
    return torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=True)  # type: ignore[no-any-return]


_NAME_LENGTH = 12 + 64


class Stateful(Protocol):
    """An object whose state can be saved: a model, optimizer, schedule, scaler, or loader."""

    def state_dict(self) -> Any:
        """Return the state, as torch.nn.Module.state_dict() does."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Restore a state that state_dict() returned."""


class Keeper:
    """The checkpoints of an application, as one of its ranks sees them. All ranks must call the same methods in the
    same order.

    Args:
        folder: the folder of the checkpoints, which every rank's node can read.
        rank: the rank.
        group: the process group of all ranks, on CPUs; None for a single rank.
    """

    def __init__(self, folder: Path, rank: int, group: dist.ProcessGroup | None) -> None:
        self._checkpoints = Checkpoints(folder)
        self._rank, self._group = rank, group
        self._parts: dict[str, Stateful] = {}
        self._own: Collection[str] = ()

    def keep(self, parts: dict[str, Stateful], own: Collection[str] = ()) -> None:
        """Save these parts from now on, each under its name."""
        self._parts.update({name: _bare(part) for name, part in parts.items()})
        self._own = own

    def save(self, iteration: int, progress: dict[str, int]) -> None:
        """Save everything after `iteration` iterations. Raises CheckpointError, on every rank."""
        ranks = self._gather(pack(random_state()))
        own = self._gather(pack({name: self._parts[name].state_dict() for name in self._own})) if self._own else []
        failed: CheckpointError | None = None
        if self._rank == 0:
            parts = {name: part.state_dict() for name, part in self._parts.items() if name not in self._own}
            state = {"version": 1, "iteration": iteration, "progress": progress, "parts": parts, "random": ranks}
            state["own"] = own
            try:
                self._checkpoints.save(iteration, state)
            except CheckpointError as error:
                failed = error
        if self._told(failed is not None):
            raise failed or CheckpointError(f"rank 0 could not save the checkpoint of iteration {iteration}")

    def load(self) -> dict[str, Any] | None:
        """Restore the latest valid state, the same on all ranks, and return it; None if there is none."""
        state: dict[str, Any] | None = None
        saved: Saved | None = None
        failed: CheckpointError | None = None
        if self._rank == 0:
            try:
                found = self._checkpoints.load()
            except CheckpointError as error:
                failed = error
            else:
                saved, state = found or (None, None)
        if self._told(failed is not None):
            raise failed or CheckpointError("rank 0 could not read a checkpoint")
        saved = self._same(saved)
        if saved is None:
            return None
        state = self._checkpoints.read(saved) if state is None else state
        parts = {**state["parts"], **self._own_states(state.get("own", []), saved)}
        missing = sorted(set(self._parts) - set(parts))
        if missing:
            raise ValueError(f"the checkpoint {saved.file} has no {', '.join(missing)}: it is of another program")
        for name, part in self._parts.items():
            part.load_state_dict(parts[name])
        return state

    def _own_states(self, ranks: list[Tensor], saved: Saved) -> dict[str, Any]:
        """Return this rank's states of the parts that each rank saved."""
        now = 1 if self._group is None else self._group.size()
        if len(ranks) == now:
            return unpack(ranks[self._rank])
        states = unpack(ranks[0]) if ranks else {}
        for name in sorted(states.keys() & self._parts.keys()):
            if not isinstance(states[name], dict) or states[name].get("position") != 0:
                raise ValueError(
                    f"in the checkpoint {saved.file} each of {len(ranks)} ranks has its own place in the {name}, and "
                    f"there are {now} now: go on with as many, or leave {name}= out, and the epoch begins once more"
                )
        return states

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Restore the random state of a checkpoint; a rank that did not exist then keeps its own."""
        if self._rank < len(state["random"]):
            set_random_state(unpack(state["random"][self._rank]))

    def _gather(self, data: Tensor) -> list[Tensor]:
        if self._group is None:
            return [data]
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self._group.size())]
        dist.all_gather(sizes, torch.tensor([len(data)]), group=self._group)
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(data)] = data
        found = [torch.zeros_like(padded) for _ in sizes]
        dist.all_gather(found, padded, group=self._group)
        return [part[: int(size)].clone() for part, size in zip(found, sizes, strict=True)]

    def _told(self, failed: bool) -> bool:
        """Return rank 0's value on every rank."""
        if self._group is None:
            return failed
        told = torch.tensor([int(failed)])
        dist.broadcast(told, 0, group=self._group)
        return bool(told)

    def _same(self, saved: Saved | None) -> Saved | None:
        """Return rank 0's checkpoint on every rank."""
        if self._group is None:
            return saved
        name = f"{saved.iteration:012d}{saved.digest}" if saved else " " * _NAME_LENGTH
        told = torch.frombuffer(bytearray(name.encode()), dtype=torch.uint8)
        dist.broadcast(told, 0, group=self._group)
        name = bytes(told.tolist()).decode()
        return Saved(int(name[:12]), name[12:]) if name.strip() else None


def _bare(part: Stateful) -> Stateful:
    """Return a model without its parallel wrapper, so that its state fits any number of ranks."""
    return part.module if isinstance(part, torch.nn.parallel.DistributedDataParallel) else part
