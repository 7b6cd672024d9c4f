"""The state of a whole training program: gathered from its ranks, saved by one of them, restored on all."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import random
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from dragon.files import regular
from torchloader.loader.order import generator_state, set_generator_state
from torchloader.scheduling.log import sync_folder

_KEPT = 2
_NAME = re.compile(r"checkpoint-(\d{12})-([0-9a-f]{64})\.pt")
_UNFINISHED = ".unfinished-"

_log = logging.getLogger(__name__)


class CheckpointError(OSError):
    """Raised if a checkpoint cannot be written or read."""


@dataclass(frozen=True, slots=True, order=True)
class Saved:
    """A checkpoint on disk: the number of iterations, and the SHA-256 of its content in hexadecimal."""

    iteration: int
    digest: str

    @property
    def file(self) -> str:
        return f"checkpoint-{self.iteration:012d}-{self.digest}.pt"

    @classmethod
    def of(cls, file: str) -> Saved | None:
        """Return the checkpoint of a file's name; None if it is no checkpoint."""
        name = _NAME.fullmatch(file)
        return cls(int(name[1]), name[2]) if name else None


class Checkpoints:
    """The checkpoints of one application, in its own folder. Only one process may write there at a time."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def saved(self) -> list[Saved]:
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return sorted(filter(None, map(Saved.of, names)), reverse=True)

    def save(self, iteration: int, state: dict[str, Any]) -> Saved:
        """Write the state after `iteration` iterations, and remove all but this checkpoint and the one before it."""
        unfinished = self.folder / f"{_UNFINISHED}{os.getpid()}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self.folder.glob(f"{_UNFINISHED}*"):  # of processes that were killed
                path.unlink(missing_ok=True)
            try:
                with unfinished.open("wb") as file:
                    saved = Saved(iteration, _write(state, file))
                    os.fsync(file.fileno())
                unfinished.replace(self.folder / saved.file)
            finally:
                unfinished.unlink(missing_ok=True)
            sync_folder(self.folder)
        except OSError as error:
            before = self.saved()
            kept = f"the one of iteration {before[0].iteration} is kept" if before else "there is none before it"
            reason = error.strerror or str(error)
            raise CheckpointError(
                f"cannot save the checkpoint of iteration {iteration} in {self.folder}: {reason}; {kept}"
            ) from error
        self._prune(saved)
        return saved

    def load(self) -> tuple[Saved, dict[str, Any]] | None:
        """Return the latest valid checkpoint; None if there is none. Invalid ones are named in the log."""
        for saved in (found := self.saved()):
            try:
                return saved, self.read(saved)
            except CheckpointError as error:
                _log.warning("%s; trying the one before it", error)
        if found:
            raise CheckpointError(
                f"none of the {len(found)} checkpoints in {self.folder} is valid; remove them to start again"
            )
        return None

    def read(self, saved: Saved) -> dict[str, Any]:
        path = self.folder / saved.file
        try:
            with open(path, "rb", opener=regular) as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != saved.digest:
                    raise CheckpointError(f"the checkpoint {path} is damaged: its content does not match its SHA-256")
                file.seek(0)
                state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
                return state
        except CheckpointError:
            raise
        except OSError as error:
            raise CheckpointError(f"cannot read the checkpoint {path}: {error.strerror or error}") from error

    def _prune(self, latest: Saved) -> None:
        # Checkpoints of later iterations were invalid, or training was restarted before them: they are removed.
        before = [saved for saved in self.saved() if saved.iteration < latest.iteration]
        for saved in self.saved():
            if saved not in {latest, *before[: _KEPT - 1]}:
                (self.folder / saved.file).unlink(missing_ok=True)


class _Digesting:
    """A file that computes the digest of what is written, and keeps the OSError that PyTorch replaces."""

    def __init__(self, file: BinaryIO) -> None:
        self.error: OSError | None = None
        self._file = file
        self._sum = hashlib.sha256()

    def write(self, data: bytes) -> int:
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self._sum.update(data)
        return written

    def flush(self) -> None:
        self._file.flush()

    def digest(self) -> str:
        return self._sum.hexdigest()


def _write(state: dict[str, Any], file: BinaryIO) -> str:
    digesting = _Digesting(file)
    try:
        torch.save(state, digesting)  # type: ignore[arg-type]
    except RuntimeError:
        if digesting.error is not None:
            raise digesting.error from None
        raise
    file.flush()
    return digesting.digest()


def _generators() -> dict[str, Any]:
    """Return the generators of Python, PyTorch, NumPy if it is imported, and this process's GPU if it uses one."""
    found: dict[str, Any] = {"python": random.seed.__self__, "torch": torch.default_generator}  # type: ignore[attr-defined]
    if (numpy := sys.modules.get("numpy")) is not None:
        found["numpy"] = numpy.random.mtrand._rand
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["cuda"] = torch.cuda.default_generators[torch.cuda.current_device()]
    return found


def random_state() -> dict[str, Any]:
    return {name: generator_state(generator) for name, generator in _generators().items()}


def set_random_state(state: dict[str, Any]) -> None:
    """Restore a random state. Parts of modules that are not imported, or not used, are ignored."""
    for name, generator in _generators().items():
        if name in state:
            set_generator_state(generator, state[name])


def pack(state: dict[str, Any]) -> Tensor:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def unpack(data: Tensor) -> dict[str, Any]:
    """Deserialize what pack() returned. Executes no code from the data."""
    return torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=True)  # type: ignore[no-any-return]


_LONGEST = len(Saved(0, "0" * 64).file)  # text that rank 0 sends to all ranks
_FAILED = "failed"


class Stateful(Protocol):
    """An object whose state can be saved: a model, optimizer, schedule, scaler, or loader."""

    def state_dict(self) -> object:
        """Return the state, as torch.nn.Module.state_dict() does."""

    def load_state_dict(self, state_dict: Any, /) -> object:
        """Restore a state that state_dict() returned."""


class RankCheckpoints:
    """The checkpoints of an application, in a folder that every rank can read. All ranks call the same methods in the
    same order."""

    def __init__(self, folder: Path, rank: int, group: dist.ProcessGroup | None) -> None:
        """`group` has all ranks, on CPUs; None for a single rank."""
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
            try:
                self._checkpoints.save(iteration, {**state, "own": own})
            except CheckpointError as error:
                failed = error
        if self._of_rank_0(_FAILED if failed else ""):
            raise failed or CheckpointError(f"rank 0 could not save the checkpoint of iteration {iteration}")

    def load(self) -> dict[str, Any] | None:
        """Restore the latest valid state, the same on all ranks, and return it; None if there is none."""
        state: dict[str, Any] | None = None
        file, failed = "", None
        if self._rank == 0:
            try:
                found = self._checkpoints.load()
            except CheckpointError as error:
                file, failed = _FAILED, error
            else:
                file, state = (found[0].file, found[1]) if found else ("", None)
        file = self._of_rank_0(file)
        if file == _FAILED:
            raise failed or CheckpointError("rank 0 could not read a checkpoint")
        saved = Saved.of(file)
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

    # Tensors, and no objects: those would be unpickled from a connection that authenticates nobody.

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

    def _of_rank_0(self, text: str) -> str:
        if self._group is None:
            return text
        data = torch.frombuffer(bytearray(text.ljust(_LONGEST).encode()), dtype=torch.uint8)
        dist.broadcast(data, 0, group=self._group)
        return bytes(data.tolist()).decode().rstrip()


def _bare(part: Stateful) -> Stateful:
    """Return a model without its parallel wrapper, so that its state fits any number of ranks."""
    return part.module if isinstance(part, torch.nn.parallel.DistributedDataParallel) else part
