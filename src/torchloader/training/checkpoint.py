"""Checkpoints on disk: written atomically, verified when they are read; the last two are kept.

A file is written under another name, flushed to the disk and then renamed; its name has the iteration and the SHA-256
of its content. So if the process is killed while it writes, the previous checkpoint is unchanged, and a file that is
incomplete or modified later is detected.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from dragon.files import regular

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
        """The name of its file in the folder."""
        return f"checkpoint-{self.iteration:012d}-{self.digest}.pt"


class Checkpoints:
    """The checkpoints of one application, in its own folder. Only one process may write there at a time."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def saved(self) -> list[Saved]:
        """Return the checkpoints, the latest first."""
        if not self.folder.is_dir():
            return []
        found = (_NAME.fullmatch(name) for name in os.listdir(self.folder))
        return sorted((Saved(int(name[1]), name[2]) for name in found if name), reverse=True)

    def save(self, iteration: int, state: dict[str, Any]) -> Saved:
        """Write the state after `iteration` iterations, and remove all but this checkpoint and the one before it."""
        unfinished = self.folder / f"{_UNFINISHED}{os.getpid()}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            try:
                with unfinished.open("wb") as file:
                    saved = Saved(iteration, _write(state, file))
                    os.fsync(file.fileno())
                unfinished.replace(self.folder / saved.file)
            finally:
                unfinished.unlink(missing_ok=True)
            self._flush()
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
        found = self.saved()
        for saved in found:
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
        """Return the state of a checkpoint."""
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
        kept = {latest, *before[: _KEPT - 1]}
        for saved in self.saved():
            if saved not in kept:
                (self.folder / saved.file).unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove incomplete files of processes that were killed."""
        for name in os.listdir(self.folder):
            if name.startswith(_UNFINISHED):
                (self.folder / name).unlink(missing_ok=True)

    def _flush(self) -> None:
        with _opened(self.folder) as folder:
            os.fsync(folder)


class _Digesting:
    """A file that computes the digest of what is written, and keeps the OSError of a failed write, which PyTorch
    replaces."""

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


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
