"""The steps before a write: checks whether it is allowed, registration of the writer, and waiting for other writers."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

from dragon.data.ddict.scope import Scope
from dragon.data.ddict.shards import AnyShard, client_number
from dragon.infrastructure.ddict_errors import DDictError, DDictFutureCheckpointError, DDictTimeoutError
from dragon.infrastructure.errors import NodeLostError
from dragon.runtime.agent_client import ask
from dragon.runtime.protocol.shards import IsAlive

__all__ = ["Writers"]

_CLIENT = struct.Struct("<IIQ")
_WRITER_CHECK_S = 1.0  # seconds between checks whether a writer that is waited for is still alive


class Writers:
    """The writes of a handle, among those of all clients of its dictionary.

    `guarded` says whether allow() must be called before a write; if not, writing is faster.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._noted: set[int] = set()  # managers that know in which checkpoint this handle writes
        self._reached: dict[int, int] = {}  # by manager: the checkpoint for which nothing need be awaited
        self._begun = 0  # the checkpoint to which this handle has advanced all managers
        self._persists = bool(scope.options.persist_freq and scope.options.persist_count)
        self.guarded = self._is_guarded()

    def _is_guarded(self) -> bool:
        """Return whether a step is needed before each write. The first write to a bound manager, too, must be
        announced."""
        scope = self._scope
        if scope.bound is not None and scope.count > 1 and not (scope.attached and scope.attached.chosen):
            return True
        options = scope.options
        return options.read_only or options.wait_for_writers or options.wait_for_keys or self._persists

    def write(self, shard: AnyShard, do: Callable[[], Any]) -> Any:
        """Call `do()` once the write is allowed, and return its result."""
        if self.guarded:
            self.allow(shard)
        return do()

    def allow(self, shard: AnyShard) -> None:
        """Wait until this handle may write to a shard. Raises DDictError if it may not, DDictTimeoutError."""
        scope = self._scope
        self.refuse_if_read_only()
        if scope.bound is not None:
            self.note_chosen()
        if scope.options.wait_for_writers:
            manager = shard.settings.manager
            if manager not in self._noted:
                self._noted.add(manager)
                shard.begin("note_writer", _me(), scope.checkpoint).result(scope.timeout)
        self._wait_for_others(shard)
        if self._persists and self._begun != scope.checkpoint:
            self._begin_everywhere()

    def refuse_if_read_only(self) -> None:
        """Raise DDictError if the dictionary is read-only."""
        if self._scope.options.read_only:
            raise DDictError(f"the dictionary {self._scope.options.name!r} is read-only", "INVALID_OPERATION")

    def refuse_future(self, shard: AnyShard) -> None:
        """Raise DDictFutureCheckpointError if the checkpoint cannot be written without waiting for other clients.

        Batches and broadcasts do not wait: with wait_for_keys or wait_for_writers their checkpoint must be one that the
        shard holds, or can hold without dropping another one that is not empty.
        """
        scope, options = self._scope, self._scope.options
        self.refuse_if_read_only()
        if not (options.wait_for_writers or options.wait_for_keys):
            return
        oldest = shard.state()[0]
        last = oldest + options.working_set_size - 1
        if scope.checkpoint > last and shard.begin("usage").result(scope.timeout)["records"]:
            raise DDictFutureCheckpointError(
                f"checkpoint {scope.checkpoint} is beyond the working set of {shard.where}, {oldest} to {last}: put() "
                "waits until it can be written, a batch or bput() does not"
            )

    def note_chosen(self) -> None:
        """Announce to all managers that keys may be with other managers than their hashes say."""
        scope = self._scope
        assert scope.attached is not None
        if not scope.attached.chosen and scope.count > 1:
            for pending in [shard.begin("note_chosen") for shard in scope.attached.shards]:
                pending.result(scope.timeout)
            scope.attached.chosen = True
        self.guarded = self._is_guarded()

    def go_to(self, checkpoint: int) -> None:
        """Move this handle to another checkpoint, and report that to the managers where it is a writer."""
        self._scope.checkpoint = checkpoint
        self._reached.clear()
        self._note(checkpoint)

    def leave(self) -> None:
        """Unregister this handle as a writer."""
        if self._scope.attached is not None:
            self._note(None)
        self._noted.clear()

    def _note(self, checkpoint: int | None) -> None:
        for manager in self._noted:
            self._scope.shards[manager].begin("note_writer", _me(), checkpoint).result(self._scope.timeout)

    def _begin_everywhere(self) -> None:
        """Advance all managers to this checkpoint, also those to which nothing is written: a checkpoint that leaves the
        working set can be restored only if all managers have written it to disk."""
        scope = self._scope
        shards = scope.open()
        for shard in shards:
            self._wait_for_others(shard)
        for pending in [shard.begin("advance", scope.checkpoint) for shard in shards]:
            pending.result(scope.timeout)
        self._begun = scope.checkpoint

    def _wait_for_others(self, shard: AnyShard) -> None:
        """Wait until the shard may drop the checkpoints that this one replaces: writers and keys have moved on."""
        manager, scope = shard.settings.manager, self._scope
        if self._reached.get(manager) == scope.checkpoint:
            return
        if scope.options.wait_for_writers:
            self._wait_for_writers(shard)
        if scope.options.wait_for_keys and scope.checkpoint not in self._reached.values():
            for each in scope.open():  # of all managers: a reader may be behind with the keys of another one
                self._wait_for_keys(each)
        self._reached[manager] = scope.checkpoint

    def _wait_for_keys(self, shard: AnyShard) -> None:
        scope = self._scope
        deadline = None if scope.timeout is None else time.monotonic() + scope.timeout
        while True:
            seen = shard.changed_since()
            behind = shard.begin("behind", scope.checkpoint).result(scope.timeout)
            if not behind:
                return
            left = _WRITER_CHECK_S if deadline is None else min(_WRITER_CHECK_S, deadline - time.monotonic())
            if left <= 0:
                raise DDictTimeoutError(
                    f"{behind} keys of checkpoints that {shard.where} must drop for checkpoint {scope.checkpoint} are "
                    "not in the checkpoint after theirs: put them there, or put them with pput()"
                )
            shard.wait_for_change(seen, left)

    def _wait_for_writers(self, shard: AnyShard) -> None:
        scope = self._scope
        first = scope.checkpoint - scope.options.working_set_size + 1
        deadline = None if scope.timeout is None else time.monotonic() + scope.timeout
        while True:
            seen = shard.changed_since()
            behind = [client for client, at in shard.begin("writers").result(scope.timeout) if at < first]
            if not behind:
                return
            if deadline is not None and time.monotonic() > deadline:
                raise DDictTimeoutError(
                    f"{len(behind)} writers have not moved to checkpoint {first}, and {shard.where} holds only "
                    f"{scope.options.working_set_size} checkpoints"
                )
            if not shard.wait_for_change(seen, _WRITER_CHECK_S):
                for client in behind:
                    if not _is_alive(client):
                        shard.begin("note_writer", client, None).result(scope.timeout)


def _me() -> bytes:
    node, pid, start_time = client_number()
    return _CLIENT.pack(node, pid, start_time)


def _is_alive(client: bytes) -> bool:
    node, pid, start_time = _CLIENT.unpack(client)
    try:
        return ask(IsAlive(node, pid, start_time))
    except NodeLostError:
        return False
