"""One shard of a distributed dictionary: an LMDB environment in shared memory, which `_core.Shard` reads and writes.

Every process of the node uses it directly; LMDB guarantees what survives a killed writer, and what readers see
meanwhile. Some shared words belong to it: the number of changes, whether it is frozen, its newest checkpoint, and how
much memory its file may use.

With a working set of one checkpoint a key has one record. Otherwise it has one for each checkpoint in which it was
written, and a reader takes the newest that is not newer than its own checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dragon import _core
from dragon.infrastructure.ddict_errors import DDictError, DDictFullError, DDictKeyError, DDictTimeoutError
from dragon.infrastructure.errors import DestroyedError
from dragon.infrastructure.plain_number import in_units
from dragon.runtime.handle import Lock, Words
from dragon.runtime.protocol.shards import Settings
from dragon.shards.records import Record, bytes_in, int_of, of_int, place_of

# Flags of a record, as in the core.
PERSISTENT, BROADCAST = 2, 4


class Stored(NamedTuple):
    """A record in a shard, valid during its transaction."""

    flags: int
    checkpoint: int
    key: bytes
    head: bytes
    blobs: list[list[Any]]  # the pieces of each blob

    @property
    def size(self) -> int:
        """The size of the record in bytes, without the key."""
        return len(self.head) + sum(len(piece) for blob in self.blobs for piece in blob)


def places_of(key: bytes, flags: int, manager: int, before: int, now: int) -> list[int]:
    """Return which of `now` managers hold a record that `manager`, one of `before`, held.

    With equal numbers it is the same manager. Otherwise the copies of a broadcast are placed with all managers that do
    not have the key itself, a key that was put through manager() stays with its manager if that exists, and any other
    key is placed by its hash.
    """
    if before == now:
        return [manager]
    place = place_of(key, now)
    if flags & BROADCAST:
        return [other for other in range(now) if other != place]
    chosen = place_of(key, before) != manager
    return [manager if chosen and manager < now else place]


MISSING: object = type("Missing", (), {"__repr__": lambda self: "MISSING"})()

# The indices of a shard's words, and the values of its state, as in the core.
CHANGES, _STATE, _NEWEST, _WRITTEN, _ROOM, _ALLOCATED, _CHOSEN, _SINCE, _COUNT_OF_WORDS = range(9)
_USABLE, _FROZEN, _GONE, _PAUSED = range(4)
_BLOCKED_BY_PAUSE, _BLOCKED_BY_READERS = range(2)  # why a write is not done; otherwise there is no memory

_READERS_TIMEOUT_S = 2.0  # seconds that a write waits for readers
_READERS_POLL_S = 0.002  # seconds between two attempts
_MAX_PAUSE_S = 10.0  # seconds after which a pause is ended: the process that paused the shard has died


def make_words() -> Words:
    """Return the words of a new shard."""
    return Words(_COUNT_OF_WORDS)


def words_after(words: Words) -> Words:
    """Return words for a shard that continues with the memory of a destroyed one."""
    later = make_words()
    for word in (_NEWEST, _ALLOCATED, _CHOSEN):
        later[word] = words[word]
    return later


def mark_gone(words: Words) -> None:
    """Mark the shard as destroyed: every later use raises DestroyedError."""
    words[_STATE] = _GONE
    words.add(CHANGES, 1)  # wakes the processes that wait for a change


def where(settings: Settings) -> str:
    """Return the name of a shard in messages."""
    return f"manager {settings.manager} on node {settings.node}"


def in_core(settings: Settings) -> tuple[str, int, int, bool, int, str, str]:
    """Return what the core needs to know of a shard."""
    freq = settings.persist_freq if settings.persist_count else 0
    working_set, wait_for_keys = settings.working_set, settings.wait_for_keys
    return settings.folder, settings.capacity, working_set, wait_for_keys, freq, settings.name, where(settings)


class Shard(_core.Shard):
    """A shard that a process of its node has open. Keys are in their encoded form."""

    def __init__(self, settings: Settings, words: Words, lock: Lock) -> None:
        self.settings, self.words, self._lock = settings, words, lock
        # Called with the checkpoints that leave the working set and must be written to disk.
        self.retire: Callable[[list[int]], None] = lambda checkpoints: None
        super().__init__(words, lock, *in_core(settings))

    @property
    def where(self) -> str:
        """The name of the shard in messages."""
        return where(self.settings)

    # ---- reading

    def view(self, key: bytes, checkpoint: int) -> tuple[_core.Reading, Stored]:
        """Return a record, and the reading in which it is valid, which the caller aborts. Raises DDictKeyError."""
        found = self._view(key, checkpoint)
        if found is None:
            raise DDictKeyError(f"no such key in {self.where}")
        return found

    def holds(self, key: bytes, checkpoint: int) -> bool:
        """Return whether the key exists and is not a copy of a broadcast."""
        found = self.read(key, checkpoint, lambda stored: not stored.flags & BROADCAST)
        return found is True

    def keys(self, checkpoint: int) -> list[bytes]:
        """Return all keys without copies of broadcasts."""
        return [key for key, flags, _ in self.flagged_keys(checkpoint) if not flags & BROADCAST]

    def part(self, key: bytes, checkpoint: int, start: int | None, stop: int | None) -> bytes | None:
        """Return value[start:stop] of a bytes value, None without the key. Raises DDictError for other values."""

        def take(stored: Stored) -> bytes:
            size = _size_of(stored)
            if size < 0:
                raise DDictError(f"the value is not a bytes object, in {self.where}", "INVALID_ARGUMENT")
            pieces = stored.blobs[0] if stored.blobs else [stored.head[1:]]
            first, last, _ = slice(start, stop).indices(size)
            parts = []
            for piece in pieces:
                parts.append(bytes(piece[max(0, first) : max(0, last)]))
                first, last = first - len(piece), last - len(piece)
            return b"".join(parts)

        found = self.read(key, checkpoint, take)
        return None if found is MISSING else bytes(found)

    def size(self, key: bytes, checkpoint: int) -> int | None:
        """Return the length of a key's bytes value, -1 for any other value, None if there is no such key."""
        found = self.read(key, checkpoint, _size_of)
        return None if found is MISSING else int(found)

    def sizes(self, checkpoint: int) -> list[tuple[bytes, int]]:
        """Return all keys without copies of broadcasts, with the lengths of their bytes values, -1 for other values."""
        return [(stored.key, _size_of(stored)) for stored in self.scan(checkpoint) if not stored.flags & BROADCAST]

    def behind(self, checkpoint: int) -> int:
        """Return how many keys of checkpoints that `checkpoint` drops are not in the next, except persistent ones."""
        self._check()
        dropped = range(self.oldest, checkpoint - self.settings.working_set + 1)
        return self._behind(dropped.start, dropped.stop) if dropped else 0

    @staticmethod
    def own_flags(flags: int) -> int:
        """Return those of a record's flags that describe its value."""
        return flags & (PERSISTENT | BROADCAST)

    # ---- writing

    def add(self, key: bytes, value: int, checkpoint: int) -> int:
        """Add to an integer, 0 if the key is missing, and return the value before. Raises DDictError for others."""

        def added(stored: Stored | None) -> tuple[Record, int, int]:
            before = 0 if stored is None else int_of(stored.head)
            if before is None:
                raise DDictError(f"fetch_add needs an integer, and {self.where} holds something else", "INVALID_VALUE")
            flags = 0 if stored is None else self.own_flags(stored.flags)
            return Record(of_int(before + value), []), flags, before

        return int(self._update(key, checkpoint, added))

    def move_to(self, folder: Path) -> None:
        """Give the memory to another shard in that folder, after the current write. What a process reads is copied."""
        self.settle()
        if not self._is_read():
            with suppress(OSError):  # the folder is on another file system: copy the data
                (folder / "data.mdb").hardlink_to(Path(self.settings.folder) / "data.mdb")
                return
        self._copy_to(str(folder))
        self.words[_ALLOCATED] = 0

    def _busy(self) -> None:
        raise DDictTimeoutError(
            f"waited {self.timeout:g} s to write into {self.where}: process {self._lock._owner_pid()} is writing"
        )

    def _blocked(self, why: int, text: str, size: int, since: float | None) -> float | None:
        """Wait until a write that was not done, `since` then for no memory, may be tried. Raises DDictFullError."""
        if why == _BLOCKED_BY_PAUSE:
            if self.words.wait(_STATE, _PAUSED, _MAX_PAUSE_S) is None:
                self.pause(False)
            return since
        now = time.monotonic()
        if since is not None and (why != _BLOCKED_BY_READERS or now > since + _READERS_TIMEOUT_S):
            usage = self.usage()
            raise DDictFullError(
                f"{in_units(size)} do not fit into {self.where}: {in_units(usage['used'])} of its "
                f"{in_units(usage['total'])} are used; {text}"
            )
        try:
            self._collect()
        except _core.ShardFull:
            time.sleep(_READERS_POLL_S)  # readers keep the pages that they read until they end
        # Those that read during the attempt may have ended since: once nobody reads, it is tried a last time.
        return (since or now) if self._is_read() else -math.inf

    # ---- the state

    def _check(self) -> None:
        if self.is_gone:
            raise DestroyedError(f"the dictionary {self.settings.name!r} was destroyed")

    @property
    def is_gone(self) -> bool:
        """Whether the dictionary was destroyed."""
        return self.words[_STATE] == _GONE

    @property
    def is_frozen(self) -> bool:
        """Whether it refuses writes."""
        return self.words[_STATE] == _FROZEN

    @property
    def newest(self) -> int:
        """The newest checkpoint that was written."""
        return self.words[_NEWEST]

    @property
    def oldest(self) -> int:
        """The oldest checkpoint that may be read and written."""
        return max(0, self.newest - self.settings.working_set + 1)

    def state(self) -> tuple[int, int, bool, bool]:
        """Return the oldest and the newest checkpoint, whether the shard is frozen, and is_chosen."""
        self._check()
        return self.oldest, self.newest, self.is_frozen, self.is_chosen

    def take_over(self, newest: int, frozen: bool, chosen: bool, since: int) -> None:
        """Set the state of the shard whose entries were loaded."""
        self.words[_NEWEST], self.words[_STATE] = newest, _FROZEN if frozen else _USABLE
        self.words[_CHOSEN], self.words[_SINCE] = chosen, since

    def set_at(self, number: str, at: int = 2**64 - 1) -> str:
        """Return the identity of the files that the managers of the dictionary with that number write together.

        It begins with the time at which the dictionary was made, or restored last. `at` orders the calls of persist();
        a checkpoint that leaves the working set comes after all of them.
        """
        return f"{self.since or int(number[:16], 16):016x}{at:016x}{number[16:]}"

    @property
    def is_chosen(self) -> bool:
        """Whether a key of the dictionary may be with another manager than its hash says."""
        return bool(self.words[_CHOSEN])

    @property
    def since(self) -> int:
        """The time at which the dictionary restored a checkpoint last; 0: never."""
        return self.words[_SINCE]

    def note_chosen(self) -> None:
        """Note that a key may be with another manager than its hash says."""
        self.words[_CHOSEN] = 1

    def pause(self, on: bool) -> None:
        """Block writers from now on, except a current write; or no longer. Has no effect on a frozen shard."""
        self.words.swap_if(_STATE, *((_USABLE, _PAUSED) if on else (_PAUSED, _USABLE)))


def _size_of(stored: Stored) -> int:
    return bytes_in(stored.head, sum(len(piece) for blob in stored.blobs for piece in blob))
