"""Writes checkpoints of this node's shards to files, and reads them, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from dragon.infrastructure.ddict_errors import DDictPersistCheckpointError
from dragon.runtime.log import runtime_log
from dragon.shards.entries import Settings, Stored
from dragon.shards.restoring import persisted_for, restore
from dragon.shards.shard import Shard
from dragon.shards.snapshot import Header, snapshot_path, snapshots_in, write_snapshot

__all__ = ["Snapshots"]

log = runtime_log("shards")

_Result = TypeVar("_Result")

_HOLD_TIMEOUT_S = 60.0  # seconds until a held checkpoint that nobody persists is dropped


class Snapshots:
    """The files of a node's shards. One task works with them at a time, in the order of the calls."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._files = ThreadPoolExecutor(1, "snapshots")
        self._wrote = False
        self._holds = ThreadPoolExecutor(1, "holds")
        self._held: dict[int, Generator[Stored]] = {}
        self._last_held = 0

    def in_turn(self, do: Callable[..., _Result], *arguments: object) -> Future[_Result]:
        """Run `do`, which works with files, after what was given before. Raises RuntimeError if no thread can be
        started."""
        self._wrote = True
        return self._files.submit(do, *arguments)

    def finish(self) -> asyncio.Future[None]:
        """Return a future that is done when all snapshots that were due before are written."""
        if not self._wrote:
            nothing = self._loop.create_future()  # the executor starts its thread at first use, and that may fail
            nothing.set_result(None)
            return nothing
        return asyncio.wrap_future(self.in_turn(lambda: None))

    def hold(self, shard: Shard, checkpoint: int) -> asyncio.Future[int]:
        """Keep a checkpoint as it is once the current writer is done. Return a number for persist()."""

        def hold() -> int:
            shard.settle()
            self._last_held += 1
            self._held[self._last_held] = shard.hold(checkpoint)
            return self._last_held

        def let_go_later(done: asyncio.Future[int]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._loop.call_later(_HOLD_TIMEOUT_S, self._let_go, done.result())

        held = asyncio.wrap_future(self._holds.submit(hold))
        held.add_done_callback(let_go_later)
        return held

    def _let_go(self, held: int) -> None:
        records = self._held.pop(held, None)
        if records is not None:
            records.close()

    def persist(self, shard: Shard, checkpoint: int, held: int) -> asyncio.Future[int | None] | None:
        """Write a checkpoint to its file.

        Args:
            held: a number that hold() returned. The checkpoint is written as it was then, and the number of its records
                is returned. With 0, writing the checkpoint as it is now is only started, and None is returned.

        Raises DDictPersistCheckpointError if the checkpoint is no longer held.
        """
        if not held:
            self.retire(shard, [checkpoint])
            return None
        if held not in self._held:
            raise DDictPersistCheckpointError(
                f"the snapshot of checkpoint {checkpoint} on {shard.where} has expired (kept {_HOLD_TIMEOUT_S:g} s)"
            )
        return asyncio.wrap_future(self._write(shard, checkpoint, self._held.pop(held)))

    def retire(self, shard: Shard, checkpoints: list[int]) -> None:
        """Start to write checkpoints that leave the working set. Failures are logged."""
        for checkpoint in checkpoints:
            self._write(shard, checkpoint, shard.hold(checkpoint)).add_done_callback(_log_failure)

    def _write(self, shard: Shard, checkpoint: int, records: Generator[Stored]) -> Future[int | None]:
        settings = shard.settings
        path = snapshot_path(settings.persist_path, settings.name, settings.manager, checkpoint)
        header = Header(settings.name, settings.manager, settings.managers, checkpoint)

        def write() -> int | None:
            try:
                count = write_snapshot(path, header, records)
            finally:
                records.close()
            if settings.persist_count > 0:
                files = snapshots_in(settings.persist_path, settings.name, settings.manager)
                for old in files[: -settings.persist_count]:
                    snapshot_path(settings.persist_path, settings.name, settings.manager, old).unlink(missing_ok=True)
            return count

        return self.in_turn(write)

    def persisted(self, settings: Settings) -> asyncio.Future[dict[int, int]]:
        """Return the checkpoints of which this node has a file of a manager, and how many managers wrote each.

        If a checkpoint was written by more or fewer managers, it counts if all their files are there. Files that are
        being written are waited for.
        """
        return asyncio.wrap_future(self.in_turn(persisted_for, settings))

    def restore(self, shards: list[Shard], checkpoint: int, written_by: int) -> asyncio.Future[bool]:
        """Fill shards from the files of `written_by` managers, after checking that the files are complete.

        Return whether a key is with another manager than its hash selects.
        """
        return asyncio.wrap_future(self.in_turn(restore, shards, checkpoint, written_by))


def _log_failure(written: Future[int | None]) -> None:
    error = written.exception()
    if error is not None:
        log.error("%s", error)
