"""Writes, lists and restores the checkpoints of a dictionary on disk."""

from __future__ import annotations

import warnings

from dragon.data.ddict.creation import moment
from dragon.data.ddict.scope import Scope
from dragon.data.plain_files import progress
from dragon.infrastructure.ddict_errors import DDictPersistCheckpointError
from dragon.runtime.agent_client import ask
from dragon.runtime.protocol.shards import HoldCheckpoint, PauseWriters, Persist, Persisted, RestoreShards, TidyFiles
from dragon.shards.snapshot import files_in

__all__ = ["newest", "persist", "persisted", "restore", "warn_of_none"]


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
