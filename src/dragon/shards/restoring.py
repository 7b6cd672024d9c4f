"""Fills shards from files of a checkpoint.

If the number of managers equals that of the files' writers, each manager reads one file. Otherwise each reads all of
them, and takes its own keys. A key that was put through manager() stays with its manager if that exists; otherwise its
hash decides. If that gives two values for one key, nothing is restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dragon.infrastructure.ddict_errors import DDictPersistCheckpointError
from dragon.shards.entries import BROADCAST, Settings, places_of
from dragon.shards.records import place_of
from dragon.shards.shard import Shard
from dragon.shards.snapshot import files_in, keys_in, managers_of, read_header, records_in, snapshot_path

__all__ = ["persisted_for", "restore"]


def persisted_for(settings: Settings, only: int | None) -> dict[int, dict[str, int]]:
    """Return the checkpoints from which a shard can be filled, as far as this node sees: their sets, and the number of
    writers of each. `only`: of this checkpoint."""
    sets: dict[tuple[int, str], dict[int, Path]] = {}
    for file in files_in(settings.persist_path):
        if file.name == settings.name and only in (None, file.checkpoint):
            sets.setdefault((file.checkpoint, file.set), {})[file.manager] = file.path
    found: dict[int, dict[str, int]] = {}
    for (checkpoint, of_set), files in sets.items():
        written_by = managers_of(files)
        if written_by not in (0, settings.managers):
            found.setdefault(checkpoint, {})[of_set] = written_by
        elif settings.manager in files:
            # The files of other managers may be on other nodes.
            found.setdefault(checkpoint, {})[of_set] = settings.managers
    return found


def restore(shards: list[Shard], checkpoint: int, of_set: str, written_by: int, since: int) -> bool:
    """Fill shards of one dictionary from a set. Returns whether a key is with another manager than its hash says.

    `since` is the time from which on the dictionary writes other sets than before. Raises DDictPersistCheckpointError
    if a file is missing or damaged, or two keys coincide; then the shards are unchanged.
    """
    chosen = False
    if written_by == shards[0].settings.managers:
        paths = [_path(shard.settings, shard.settings.manager, checkpoint, of_set) for shard in shards]
        for path in paths:
            _check(path, written_by, of_set)
        for shard, path in zip(shards, paths, strict=True):
            shard.begin_anew(checkpoint, since)
            for key, flags, record in records_in(path):
                shard.put(key, record, checkpoint, shard.own_flags(flags))
                chosen = chosen or _is_chosen(key, flags, shard.settings.manager, written_by)
    else:
        chosen = _restore_from_others(shards, checkpoint, of_set, written_by, since)
    return chosen


def _is_chosen(key: bytes, flags: int, manager: int, managers: int) -> bool:
    """Return whether a manager holds a key that the key's hash assigns to another one."""
    return not flags & BROADCAST and place_of(key, managers) != manager


def _restore_from_others(shards: list[Shard], checkpoint: int, of_set: str, written_by: int, since: int) -> bool:
    settings = shards[0].settings
    mine = {shard.settings.manager: shard for shard in shards}
    paths = [_path(settings, manager, checkpoint, of_set) for manager in range(written_by)]
    for path in paths:
        _check(path, written_by, of_set)
    _check_chosen(paths, settings.managers)
    for shard in shards:
        shard.begin_anew(checkpoint, since)
    found_chosen = False
    for manager, path in enumerate(paths):
        for key, flags, record in records_in(path):
            for place in places_of(key, flags, manager, written_by, settings.managers):
                if place in mine:
                    mine[place].put(key, record, checkpoint, Shard.own_flags(flags))
                    found_chosen = found_chosen or _is_chosen(key, flags, place, settings.managers)
    return found_chosen


def _check_chosen(paths: list[Path], managers: int) -> None:
    """Raise DDictPersistCheckpointError if a key that was put through manager() would coincide with an equal key."""
    seen: dict[tuple[bytes, int], int] = {}
    for key, manager, place in _placed(paths, managers, True):
        if seen.setdefault((key, place), manager) != manager:
            raise _met(key, seen[key, place], manager, place)
    if seen:
        for key, manager, place in _placed(paths, managers, False):
            if (key, place) in seen:
                raise _met(key, seen[key, place], manager, place)


def _placed(paths: list[Path], managers: int, chosen: bool) -> Iterator[tuple[bytes, int, int]]:
    """Yield (key, manager, new manager) of the records whose manager was chosen, or was not."""
    for manager, path in enumerate(paths):
        for key, flags in keys_in(path):
            if not flags & BROADCAST and _is_chosen(key, flags, manager, len(paths)) == chosen:
                yield key, manager, places_of(key, flags, manager, len(paths), managers)[0]


def _met(key: bytes, first: int, second: int, place: int) -> DDictPersistCheckpointError:
    return DDictPersistCheckpointError(
        f"key {key[1:60].decode(errors='replace')!r} was put with manager {first} and with manager {second}, and both "
        f"would go to manager {place} now; restore it with as many managers as wrote it"
    )


def _path(settings: Settings, manager: int, checkpoint: int, of_set: str) -> Path:
    return snapshot_path(settings.persist_path, settings.name, manager, checkpoint, of_set)


def _check(path: Path, written_by: int, of_set: str) -> None:
    header = read_header(path)
    if header.managers != written_by:
        raise DDictPersistCheckpointError(
            f"{path} was written by one of {header.managers} managers, whose other files are not all there; "
            "to restore it into another number of managers all nodes need all of them, in a folder that they share"
        )
    if header.set != of_set:
        raise DDictPersistCheckpointError(
            f"{path} was renamed: it belongs to the files whose names end in {header.set}.ddict; restore those"
        )
