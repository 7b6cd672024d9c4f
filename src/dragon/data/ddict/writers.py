"""The writes of a handle, and its checkpoints on disk. Before a write come a check whether it is allowed, the
registration of the writer, and waiting for other writers."""

from __future__ import annotations

import struct
import warnings

from dragon.data.ddict.creation import moment
from dragon.data.ddict.scope import Scope, looks
from dragon.data.ddict.shards import AnyShard, spread
from dragon.data.plain_files import progress
from dragon.infrastructure.ddict_errors import (
    DDictError,
    DDictFullError,
    DDictFutureCheckpointError,
    DDictPersistCheckpointError,
    DDictTimeoutError,
)
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.plain_number import in_units
from dragon.runtime.agent_client import ask
from dragon.runtime.folder import this_process
from dragon.runtime.protocol.shards import (
    HoldCheckpoint,
    IsAlive,
    PauseWriters,
    Persist,
    Persisted,
    RestoreShards,
    TidyFiles,
)
from dragon.runtime.run import this_run
from dragon.shards.records import Record
from dragon.shards.shard import BROADCAST
from dragon.shards.snapshot import files_in

_AT_ONCE = 64 * 2**20  # bytes of records that are sent together

_CLIENT = struct.Struct("<IIQ")
_WRITER_CHECK_S = 1.0  # seconds between checks whether a writer that is waited for is still alive


class Writers:
    """The writes of a handle. `guarded` says whether allow() must be called before a write, which is slower."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._noted: set[int] = set()  # managers that know in which checkpoint this handle writes
        self._reached: dict[int, int] = {}  # by manager: the checkpoint for which nothing need be awaited
        self._begun = 0  # the checkpoint to which this handle has advanced all managers
        self._persists = bool(scope.options.persist_freq and scope.options.persist_count)
        self.guarded = self._is_guarded()

    def _is_guarded(self) -> bool:
        """Return whether a step is needed before each write; the first write to a bound manager must be announced."""
        scope = self._scope
        if scope.bound is not None and scope.count > 1 and not (scope.attached and scope.attached.chosen):
            return True
        options = scope.options
        return options.read_only or options.wait_for_writers or options.wait_for_keys or self._persists

    def allowed(self, shard: AnyShard) -> AnyShard:
        """Return the shard, once this handle may write to it."""
        if self.guarded:
            self.allow(shard)
        return shard

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
                shard.call("note_writer", _me(), scope.checkpoint)
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
        oldest = shard.call("state")[0]
        last = oldest + options.working_set_size - 1
        if scope.checkpoint > last and shard.call("usage")["records"]:
            raise DDictFutureCheckpointError(
                f"checkpoint {scope.checkpoint} is beyond the working set of {shard.where}, {oldest} to {last}: put() "
                "waits until it can be written, a batch or bput() does not"
            )

    def note_chosen(self) -> None:
        """Announce to all managers that keys may be with other managers than their hashes say."""
        scope = self._scope
        assert scope.attached is not None
        if not scope.attached.chosen and scope.count > 1:
            scope.on(scope.attached.shards, "note_chosen")
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
            self._scope.shards[manager].call("note_writer", _me(), checkpoint)

    def _begin_everywhere(self) -> None:
        """Advance all managers to this checkpoint, also those to which nothing is written: a checkpoint that leaves the
        working set can be restored only if all managers have written it to disk."""
        scope = self._scope
        shards = scope.open()
        for shard in shards:
            self._wait_for_others(shard)
        scope.on(shards, "advance", scope.checkpoint)
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
        scope, behind = self._scope, 0
        for _ in looks(shard, scope.timeout, lambda: _WRITER_CHECK_S):
            behind = shard.call("behind", scope.checkpoint)
            if not behind:
                return
        raise DDictTimeoutError(
            f"{behind} keys of checkpoints that {shard.where} must drop for checkpoint {scope.checkpoint} are not in "
            "the checkpoint after theirs: put them there, or put them with pput()"
        )

    def _wait_for_writers(self, shard: AnyShard) -> None:
        scope, behind = self._scope, []
        first = scope.checkpoint - scope.options.working_set_size + 1
        for changed in looks(shard, scope.timeout, lambda: _WRITER_CHECK_S):
            behind = [client for client, at in shard.call("writers") if at < first]
            if not behind:
                return
            for client in () if changed else behind:
                if not _is_alive(client):
                    shard.call("note_writer", client, None)
        raise DDictTimeoutError(
            f"{len(behind)} writers have not moved to checkpoint {first}, and {shard.where} holds only "
            f"{scope.options.working_set_size} checkpoints"
        )

    # ---- with all managers

    def broadcast(self, key: bytes, record: Record) -> None:
        """Put a record with every manager. Raises DDictFullError if one has no room; then no manager stores it."""
        scope = self._scope
        shards = scope.open()
        for shard in shards:
            self.refuse_future(shard)
        for shard in shards:
            self.allowed(shard)
        for shard, usage in zip(shards, scope.on(shards, "usage"), strict=True):
            if record.size > usage["total"] - usage["used"]:
                raise DDictFullError(
                    f"{in_units(record.size)} do not fit into {shard.where}, of whose {in_units(usage['total'])} "
                    f"{in_units(usage['used'])} are used: no manager has stored the broadcast"
                )
        own = scope.place(key)
        if any(shard.local is None for shard in shards) and spread(
            shards, own, key, record, scope.checkpoint, BROADCAST, scope.timeout
        ):
            return
        pending = [
            shard.begin("put", key, record, scope.checkpoint, 0 if i == own else BROADCAST)
            for i, shard in enumerate(shards)
        ]
        for one in pending:
            one.result(scope.timeout)


class Batch:
    """Puts with these flags that are collected and sent together. A manager stores all records that are sent together,
    or none.

    With `lasting` the caller may change a value after add(), and send() does not wait until the checkpoint can be
    written.
    """

    def __init__(self, scope: Scope, writers: Writers, flags: int, lasting: bool = False) -> None:
        self._scope, self._writers = scope, writers
        self.flags, self._lasting = flags, lasting
        self._records: list[list[tuple[bytes, Record]]] = [[] for _ in scope.open()]
        self._size = 0

    def add(self, manager: int, key: bytes, record: Record) -> None:
        """Add a record, and send the batch if it is large."""
        self._size += record.size
        large = self._size > _AT_ONCE
        self._records[manager].append((key, record.copied() if self._lasting and not large else record))
        if large:
            self.send()

    def check(self, flags: int) -> None:
        """Raise DDictError if the flags of a put are not those of the batch."""
        if flags != self.flags:
            needed = "puts without persistence" if flags else "pput()"
            raise DDictError(f"this batch was started for {needed}: start_batch_put(persist=…)", "INVALID_OPERATION")

    def send(self) -> None:
        """Send the collected records and wait until they are stored. Raises DDictFutureCheckpointError."""
        shards, records = self._scope.open(), self._records
        self._records, self._size = [[] for _ in shards], 0
        chosen = [(shard, some) for shard, some in zip(shards, records, strict=True) if some]
        for shard, _ in chosen if self._lasting else ():
            self._writers.refuse_future(shard)
        checkpoint = self._scope.checkpoint
        pending = [
            self._writers.allowed(shard).begin("put_many", some, checkpoint, self.flags) for shard, some in chosen
        ]
        for one in pending:
            one.result(self._scope.timeout)


def _me() -> bytes:
    me = this_process()
    return _CLIENT.pack(this_run().node, me.pid, me.start_time)


def _is_alive(client: bytes) -> bool:
    node, pid, start_time = _CLIENT.unpack(client)
    try:
        return ask(IsAlive(node, pid, start_time))
    except NodeLostError:
        return False


def persist(scope: Scope) -> None:
    """Write the scope's checkpoint to disk, as all managers held it at one moment; if it fails, older files stay."""
    number, managers, checkpoint = scope.descriptor.number, _homes(scope), scope.checkpoint
    try:
        for manager, node in managers:
            ask(PauseWriters(node, number, manager, True))
        held = [ask(HoldCheckpoint(node, number, manager, checkpoint)) for manager, node in managers]
    finally:
        for manager, node in managers:
            ask(PauseWriters(node, number, manager, False))
    sets: list[str] = []
    complete = False
    try:
        for manager, node in progress(managers, "managers"):
            sets.append(ask(Persist(node, number, manager, checkpoint, held[manager], max(held))))
        found = _whole(scope, checkpoint).get(checkpoint)
        if found != (sets[0], len(managers)):
            raise DDictPersistCheckpointError(
                f"checkpoint {checkpoint} was written to {scope.options.persist_path}, but another dictionary "
                f"{scope.options.name!r} writes there too: each needs a name or a folder of its own"
            )
        complete = True
    finally:
        for (manager, node), of_set in zip(managers, sets, strict=False):
            ask(TidyFiles(node, number, manager, checkpoint, of_set, complete))


def persisted(scope: Scope) -> list[int]:
    """Return the checkpoints of which every node sees the files it needs, sorted."""
    return sorted(_whole(scope))


def newest(scope: Scope) -> int | None:
    """Return the checkpoint that was written last by the latest dictionary of the name; None if there is none."""
    found = [(of_set[:16], checkpoint) for checkpoint, (of_set, _) in _whole(scope).items()]
    return max(found)[1] if found else None


def _whole(scope: Scope, only: int | None = None) -> dict[int, tuple[str, int]]:
    """Return the checkpoints of which every node sees its part: the latest complete set, and the number of writers."""
    number = scope.descriptor.number
    first, *others = [ask(Persisted(node, number, manager, only)) for manager, node in _homes(scope)]
    whole = {}
    for checkpoint, sets in first.items():
        seen = [(one, by) for one, by in sets.items() if all(o.get(checkpoint, {}).get(one) == by for o in others)]
        if seen:
            whole[checkpoint] = max(seen)
    return whole


def restore(scope: Scope, checkpoint: int) -> bool:
    """Replace the contents by a checkpoint on disk. Returns whether keys may be with any manager."""
    available = _whole(scope)
    if checkpoint not in available:
        raise DDictPersistCheckpointError(
            f"checkpoint {checkpoint} of {scope.options.name!r} is not in {scope.options.persist_path}, where there is "
            f"{sorted(available) or 'none'} of which all nodes of the dictionary see what they need"
        )
    managers: dict[int, list[int]] = {}
    for shard in scope.open():
        for node in shard.holders():
            managers.setdefault(node, []).append(shard.settings.manager)
    chosen, number, since = False, scope.descriptor.number, moment(scope.options)
    for node in progress(sorted(managers), "nodes"):
        chosen |= ask(RestoreShards(node, number, managers[node], checkpoint, *available[checkpoint], since))
    return chosen


def _homes(scope: Scope) -> list[tuple[int, int]]:
    """Return each manager with the node of its primary."""
    return [(manager, shard.holders()[0]) for manager, shard in enumerate(scope.open())]


def warn_of_none(name: str, folder: str) -> None:
    """Warn that a restarted dictionary finds no checkpoint and begins empty."""
    others = ", ".join(map(repr, sorted({file.name for file in files_in(folder)})))
    warnings.warn(
        f"restart: {folder} has no checkpoint of a dictionary {name!r}, which begins empty"
        + (f"; there are those of {others}" if others else ""),
        RuntimeWarning,
        stacklevel=3,
    )
