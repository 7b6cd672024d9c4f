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
from dragon.shards.snapshot import (
    keys_in,
    managers_of,
    read_header,
    records_in,
    snapshot_path,
    snapshots_of_all,
)

__all__ = ["persisted_for", "restore"]


def persisted_for(settings: Settings) -> dict[int, int]:
    """Return the checkpoints from which a shard can be filled, as far as this node sees, and the number of writers of
    each."""
    found = {}
    for checkpoint, files in snapshots_of_all(settings.persist_path, settings.name).items():
        written_by = managers_of(settings.persist_path, settings.name, checkpoint, files)
        if written_by not in (0, settings.managers):
            found[checkpoint] = written_by
        elif settings.manager in files:
            found[checkpoint] = settings.managers  # the files of other managers may be on other nodes
    return found


def restore(shards: list[Shard], checkpoint: int, written_by: int) -> bool:
    """Fill shards of one dictionary. Returns whether a key is with another manager than its hash says.

    Raises DDictPersistCheckpointError if a file is missing or damaged, or two keys coincide; then the shards are
    unchanged.
    """
    settings = shards[0].settings
    chosen = False
    if written_by == settings.managers:
        for shard in shards:
            _check(_path(shard.settings, shard.settings.manager, checkpoint), written_by)
        for shard in shards:
            shard.begin_anew(checkpoint)
            for key, flags, record in records_in(_path(shard.settings, shard.settings.manager, checkpoint)):
                shard.put(key, record, checkpoint, shard.own_flags(flags))
                chosen = chosen or _is_chosen(key, flags, shard.settings.manager, written_by)
    else:
        chosen = _restore_from_others(shards, checkpoint, written_by)
    if not settings.read_only:
        _remove_newer(settings, checkpoint, [shard.settings.manager for shard in shards], written_by)
    return chosen


def _is_chosen(key: bytes, flags: int, manager: int, managers: int) -> bool:
    """Return whether a manager holds a key that the key's hash assigns to another one."""
    return not flags & BROADCAST and place_of(key, managers) != manager


def _restore_from_others(shards: list[Shard], checkpoint: int, written_by: int) -> bool:
    settings = shards[0].settings
    mine = {shard.settings.manager: shard for shard in shards}
    paths = [_path(settings, manager, checkpoint) for manager in range(written_by)]
    for path in paths:
        _check(path, written_by)
    _check_chosen(paths, settings.managers)
    for shard in shards:
        shard.begin_anew(checkpoint)
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


def _path(settings: Settings, manager: int, checkpoint: int) -> Path:
    return snapshot_path(settings.persist_path, settings.name, manager, checkpoint)


def _check(path: Path, written_by: int) -> None:
    header = read_header(path)
    if header.managers != written_by:
        raise DDictPersistCheckpointError(
            f"{path} was written by one of {header.managers} managers, whose other files are not all there; "
            "to restore it into another number of managers all nodes need all of them, in a folder that they share"
        )


def _remove_newer(settings: Settings, checkpoint: int, managers: list[int], written_by: int) -> None:
    """Remove the files of later checkpoints, which are invalid once the program has returned to an earlier one."""
    for newer, files in snapshots_of_all(settings.persist_path, settings.name).items():
        for manager in files:
            if newer > checkpoint and (manager in managers or written_by != settings.managers):
                _path(settings, manager, newer).unlink(missing_ok=True)
