"""Writes, lists and restores the checkpoints of a dictionary on disk."""

from __future__ import annotations

from dragon.data.ddict.scope import Scope
from dragon.data.progress import progress
from dragon.infrastructure.ddict_errors import DDictPersistCheckpointError
from dragon.runtime.agent_client import ask
from dragon.runtime.protocol.shards import HoldCheckpoint, PauseWriters, Persist, Persisted, RestoreShards

__all__ = ["persist", "persisted", "restore"]


def persist(scope: Scope) -> None:
    """Write the scope's checkpoint to disk, as all managers held it at one moment."""
    number, managers = scope.descriptor.number, _homes(scope)
    try:
        for manager, node in managers:
            ask(PauseWriters(node, number, manager, True))
        held = [ask(HoldCheckpoint(node, number, manager, scope.checkpoint)) for manager, node in managers]
    finally:
        for manager, node in managers:
            ask(PauseWriters(node, number, manager, False))
    for manager, node in progress(managers, "managers"):
        ask(Persist(node, number, manager, scope.checkpoint, held[manager]))


def persisted(scope: Scope) -> dict[int, int]:
    """Return {checkpoint: number of managers that wrote it} of the checkpoints of which every node sees the files it
    needs."""
    number = scope.descriptor.number
    first, *others = [ask(Persisted(node, number, manager)) for manager, node in _homes(scope)]
    return {number: by for number, by in first.items() if all(other.get(number) == by for other in others)}


def restore(scope: Scope, checkpoint: int) -> bool:
    """Replace the contents by a checkpoint on disk. Returns whether keys may be with other managers than their hashes
    say.

    Raises DDictPersistCheckpointError if there is no such checkpoint.
    """
    available = persisted(scope)
    if checkpoint not in available:
        raise DDictPersistCheckpointError(
            f"checkpoint {checkpoint} of {scope.options.name!r} is not in {scope.options.persist_path}, where there is "
            f"{sorted(available) or 'none'} of which all nodes of the dictionary see what they need"
        )
    managers: dict[int, list[int]] = {}
    for shard in scope.open():
        for node in shard.holders():
            managers.setdefault(node, []).append(shard.settings.manager)
    chosen = False
    for node in progress(sorted(managers), "nodes"):
        number = scope.descriptor.number
        chosen |= ask(RestoreShards(node, number, managers[node], checkpoint, available[checkpoint]))
    return chosen


def _homes(scope: Scope) -> list[tuple[int, int]]:
    """Return each manager with the node of its primary."""
    return [(manager, shard.home()) for manager, shard in enumerate(scope.open())]
