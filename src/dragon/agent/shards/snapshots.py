"""Writes checkpoints of this node's shards to files, and reads them, in a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from dragon import _core
from dragon.infrastructure.ddict_errors import DDictPersistCheckpointError
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.shards import HoldCheckpoint, Persist, Persisted, RestoreShards, TidyFiles
from dragon.runtime.rpc import serves_each
from dragon.shards import snapshot as files
from dragon.shards.shard import Shard

log = runtime_log("shards")

_Result = TypeVar("_Result")

_HOLD_TIMEOUT_S = 60.0  # seconds until a held checkpoint that nobody persists is dropped
_STUCK_S = 30.0  # seconds without progress after which a file system is taken as stuck
_LOOK_S = 1.0


class Snapshots:
    """The files of a node's shards, which `shard` finds. One task works with them at a time, in the order of calls."""

    def __init__(self, shard: Callable[[str, int], Shard]) -> None:
        self._shard = shard
        self._loop = asyncio.get_running_loop()
        self._files = ThreadPoolExecutor(1, "snapshots")
        self._wrote = False
        self._holds = ThreadPoolExecutor(1, "holds")
        self._held: dict[int, _core.Scan] = {}
        self._last_held = 0
        self._writing, self._progress = "", 0

    def in_turn(self, do: Callable[..., _Result], *arguments: object) -> Future[_Result]:
        """Run `do`, which works with files, after what was given before. Raises RuntimeError without a thread."""
        self._wrote = True
        return self._files.submit(do, *arguments)

    def _run(self, do: Callable[..., _Result], *arguments: object) -> asyncio.Future[_Result]:
        """Run `do` as in_turn() does, and return a future of the event loop."""
        return asyncio.wrap_future(self.in_turn(do, *arguments))

    @serves_each(Persisted)
    def _persisted(
        self, number: str, manager: int, only: int | None = None
    ) -> asyncio.Future[dict[int, dict[str, int]]]:
        return self._run(files.persisted_for, self._shard(number, manager).settings, only)

    @serves_each(TidyFiles)
    def _tidy(self, number: str, manager: int, checkpoint: int, of_set: str, complete: bool) -> asyncio.Future[None]:
        return self._run(files.tidy, self._shard(number, manager).settings, checkpoint, of_set, complete)

    @serves_each(RestoreShards)
    def _restore(
        self, number: str, managers: list[int], checkpoint: int, of_set: str, written_by: int, since: int
    ) -> asyncio.Future[bool]:
        shards = [self._shard(number, manager) for manager in managers]
        return self._run(files.restore, shards, checkpoint, of_set, written_by, since)

    def finish(self) -> asyncio.Future[None]:
        """Return a future that is done when all snapshots that were due are written, or the disk takes no more."""
        if not self._wrote:
            nothing = self._loop.create_future()  # the executor starts its thread at first use, and that may fail
            nothing.set_result(None)
            return nothing
        return self._loop.create_task(self._wait(self._run(lambda: None)))

    async def _wait(self, written: asyncio.Future[None]) -> None:
        seen, since = self._progress, self._loop.time()
        while not (await asyncio.wait([written], timeout=_LOOK_S))[0]:
            if seen != self._progress:
                seen, since = self._progress, self._loop.time()
            elif self._loop.time() - since > _STUCK_S:
                log.error("%s is given up: the disk has taken nothing for %g s", self._writing, _STUCK_S)
                return

    def _count(self) -> None:
        self._progress += 1

    @serves_each(HoldCheckpoint)
    def _hold(self, number: str, manager: int, checkpoint: int) -> asyncio.Future[int]:
        """Keep a checkpoint as it is once the current writer is done. Return a number for _persist()."""
        shard = self._shard(number, manager)

        def hold() -> int:
            shard.settle()
            self._last_held = max(self._last_held + 1, time.time_ns())  # numbers of later calls are larger
            self._held[self._last_held] = shard.scan(checkpoint)
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

    @serves_each(Persist)
    def _persist(
        self, number: str, manager: int, checkpoint: int, held: int = 0, at: int = 0
    ) -> asyncio.Future[str] | str:
        shard = self._shard(number, manager)
        if not held:
            self.retire(shard, number, [checkpoint])
            return ""
        if held not in self._held:
            raise DDictPersistCheckpointError(
                f"the snapshot of checkpoint {checkpoint} on {shard.where} has expired (kept {_HOLD_TIMEOUT_S:g} s)"
            )
        return asyncio.wrap_future(self._write(shard, checkpoint, self._held.pop(held), shard.set_at(number, at)))

    def retire(self, shard: Shard, number: str, checkpoints: list[int]) -> None:
        """Start to write checkpoints that leave the working set. Failures are logged."""
        for checkpoint in checkpoints:
            written = self._write(shard, checkpoint, shard.scan(checkpoint), shard.set_at(number), last=True)
            written.add_done_callback(_log_failure)

    def _write(
        self, shard: Shard, checkpoint: int, records: _core.Scan, of_set: str, last: bool = False
    ) -> Future[str]:
        settings = shard.settings
        path = files.snapshot_path(settings, settings.manager, checkpoint, of_set)
        header = files.Header(settings.name, settings.manager, settings.managers, checkpoint, of_set)

        def write() -> str:
            self._writing = str(path)
            try:
                files.write_snapshot(path, header, records, self._count)
            finally:
                records.close()
            if last:  # persist() asks for it once the files of all nodes are there
                here = [file for file in files.files_in(path.parent) if file[:3] == (settings.name, checkpoint, of_set)]
                if files.managers_of({file.manager: file.path for file in here}):
                    files.tidy(settings, checkpoint, of_set)
            return of_set

        return self.in_turn(write)


def _log_failure(written: Future[str]) -> None:
    error = written.exception()
    if error is not None:
        log.error("%s", error)
