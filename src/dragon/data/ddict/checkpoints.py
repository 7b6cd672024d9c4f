"""The checkpoints of a dictionary: which one a handle works in, and those on disk."""

from __future__ import annotations

import operator
import struct
import time
from collections.abc import Callable
from typing import Any

from dragon.data.ddict.lookups import Lookups
from dragon.data.ddict.shards import AnyShard, client_number
from dragon.data.progress import progress
from dragon.infrastructure.ddict_errors import (
    DDictError,
    DDictFutureCheckpointError,
    DDictPersistCheckpointError,
    DDictTimeoutError,
)
from dragon.infrastructure.errors import NodeLostError
from dragon.runtime.agent_client import ask
from dragon.runtime.protocol.shards import HoldCheckpoint, IsAlive, PauseWriters, Persist, Persisted, RestoreShards

__all__ = ["Checkpoints"]

_CLIENT = struct.Struct("<IIQ")
_LOOK_EVERY = 1.0  # seconds between looks whether a writer that is waited for is still there


class Checkpoints(Lookups):
    """What of a handle concerns checkpoints."""

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that this handle reads and writes."""
        return self._checkpoint

    @checkpoint_id.setter
    def checkpoint_id(self, value: int) -> None:
        value = operator.index(value)
        if value < 0:
            raise ValueError("checkpoint_id cannot be negative")
        self._go_to(value)

    @property
    def current_checkpoint_id(self) -> int:
        """The same."""
        return self._checkpoint

    def checkpoint(self) -> None:
        """Go on to the next checkpoint."""
        self._go_to(self._checkpoint + 1)

    def rollback(self) -> None:
        """Go back to the checkpoint before."""
        self._go_to(max(0, self._checkpoint - 1))

    def sync_to_newest_checkpoint(self) -> None:
        """Go to the newest checkpoint that anyone has written."""
        self._go_to(max(state[1] for state in self._on_all("state")))

    def _oldest(self) -> int:
        """The oldest checkpoint that all managers hold."""
        return max(int(state[0]) for state in self._on_all("state"))

    def _go_to(self, checkpoint: int) -> None:
        if self._batch is not None:
            raise DDictError("a batch of puts belongs to one checkpoint: end_batch_put() first", "INVALID_OPERATION")
        self._checkpoint = checkpoint
        for manager in self._noted:
            self._shards[manager].begin("note_writer", _me(), checkpoint).result(self._timeout)

    # ---- writing

    def _write(self, shard: AnyShard, do: Callable[[], Any]) -> Any:
        """Change something, once it may be."""
        if self._guarded:
            self._may_write(shard)
        return do()

    def _refuse_if_read_only(self) -> None:
        if self._options.read_only:
            raise DDictError(f"the dictionary {self._options.name!r} is read-only", "INVALID_OPERATION")

    def _may_write(self, shard: AnyShard) -> None:
        self._refuse_if_read_only()
        if self._bound is not None:
            self._note_chosen()
        if self._options.wait_for_writers:
            manager = shard.settings.manager
            if manager not in self._noted:
                self._noted.add(manager)
                shard.begin("note_writer", _me(), self._checkpoint).result(self._timeout)
            self._await_writers(shard)
        if self._persists and self._begun != self._checkpoint:
            self._begin_everywhere()

    def _begin_everywhere(self) -> None:
        """Have all managers go on to this checkpoint, those too in which nothing is written: what leaves the working
        set can be restored only if all of them have written it to disk."""
        shards = self._open_shards()
        if self._options.wait_for_writers:
            for shard in shards:
                self._await_writers(shard)
        for pending in [shard.begin("advance", self._checkpoint) for shard in shards]:
            pending.result(self._timeout)
        self._begun = self._checkpoint

    def _await_writers(self, shard: AnyShard) -> None:
        first = self._checkpoint - self._options.working_set_size + 1
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            seen = shard.changed_since()
            behind = [client for client, at in shard.begin("writers").result(self._timeout) if at < first]
            if not behind:
                return
            if deadline is not None and time.monotonic() > deadline:
                raise DDictTimeoutError(
                    f"{len(behind)} writers have not gone on to checkpoint {first}, and {shard.where} holds "
                    f"{self._options.working_set_size}"
                )
            if not shard.wait_for_change(seen, _LOOK_EVERY):
                for client in behind:
                    if not _is_alive(client):
                        shard.begin("note_writer", client, None).result(self._timeout)

    def _no_future(self, shard: AnyShard) -> None:
        """Batches and broadcasts do not wait for others: where somebody may be waited for, their checkpoint must be one
        that the shard holds, or can hold without dropping another one in which there is something."""
        self._refuse_if_read_only()
        if not (self._options.wait_for_writers or self._exact):
            return
        oldest = shard.state()[0]
        last = oldest + self._options.working_set_size - 1
        if self._checkpoint > last and shard.begin("usage").result(self._timeout)["records"]:
            raise DDictFutureCheckpointError(
                f"checkpoint {self._checkpoint} is beyond the working set of {shard.where}, {oldest} to {last}: put() "
                "waits until it can be written, a batch or bput() does not"
            )

    def detach(self) -> None:
        """Drop this handle; others go on."""
        for manager in self._noted:
            self._shards[manager].begin("note_writer", _me(), None).result(self._timeout)
        self._noted.clear()
        super().detach()

    # ---- files

    def persist(self) -> None:
        """Write the current checkpoint to disk now. Without a persister, or with a persist_count of 0, nothing happens.

        All managers write what they held at one moment, for which writers wait some milliseconds; they go on while the
        files are written.
        """
        if self._options.persister == "NULL" or not self._options.persist_count:
            return
        number, managers = self._descriptor.number, self._homes()
        try:
            for manager, node in managers:
                ask(PauseWriters(node, number, manager, True))
            held = [ask(HoldCheckpoint(node, number, manager, self._checkpoint)) for manager, node in managers]
        finally:
            for manager, node in managers:
                ask(PauseWriters(node, number, manager, False))
        for manager, node in progress(managers, "managers"):
            ask(Persist(node, number, manager, self._checkpoint, held[manager]))

    def persisted_ids(self) -> list[int]:
        """The checkpoints that can be restored, in order. What is being written is waited for."""
        return sorted(self._persisted())

    def _persisted(self) -> dict[int, int]:
        """How many managers wrote each checkpoint of which every node sees the files that it needs."""
        number = self._descriptor.number
        first, *others = [ask(Persisted(node, number, manager)) for manager, node in self._homes()]
        return {number: by for number, by in first.items() if all(other.get(number) == by for other in others)}

    def restore(self, chkpt: int) -> None:
        """Replace the contents by a persisted checkpoint, and go to it. Raises DDictPersistCheckpointError.

        Where it was written by another number of managers every node reads all files.
        """
        if self._batch is not None:
            raise DDictError("restore() within a batch of puts: end_batch_put() first", "INVALID_OPERATION")
        chkpt = operator.index(chkpt)
        available = self._persisted()
        if chkpt not in available:
            raise DDictPersistCheckpointError(
                f"checkpoint {chkpt} of {self._options.name!r} is not in {self._options.persist_path}, where there is "
                f"{sorted(available) or 'none'} of which all nodes of the dictionary see what they need"
            )
        managers: dict[int, list[int]] = {}
        for shard in self._open_shards():
            for node in shard.holders():
                managers.setdefault(node, []).append(shard.settings.manager)
        chosen = False
        for node in progress(sorted(managers), "nodes"):
            chosen |= ask(RestoreShards(node, self._descriptor.number, managers[node], chkpt, available[chkpt]))
        if chosen:
            self._note_chosen()
        self._checkpoint = chkpt

    def advance(self) -> None:
        """In a read-only dictionary, go on to the next persisted checkpoint. Raises DDictError in any other."""
        if not self._options.read_only:
            raise DDictError(
                "advance() is for read-only dictionaries; checkpoint() goes on in others", "INVALID_OPERATION"
            )
        later = [number for number in self.persisted_ids() if number > self._checkpoint]
        if not later:
            raise DDictPersistCheckpointError(f"there is no checkpoint after {self._checkpoint} on disk")
        self.restore(later[0])

    def _homes(self) -> list[tuple[int, int]]:
        """Each manager, and the node that decides about its shard."""
        return [(manager, shard.home()) for manager, shard in enumerate(self._open_shards())]


def _me() -> bytes:
    node, pid, start_time = client_number()
    return _CLIENT.pack(node, pid, start_time)


def _is_alive(client: bytes) -> bool:
    node, pid, start_time = _CLIENT.unpack(client)
    try:
        return ask(IsAlive(node, pid, start_time))
    except NodeLostError:
        return False
