"""Selects the sources of each telemetry level."""

from __future__ import annotations

from dragon.agent.telemetry.dictionary_source import DictionarySource
from dragon.agent.telemetry.gpu_source import gpu_source
from dragon.agent.telemetry.group_source import GroupSource
from dragon.agent.telemetry.node_source import CoreSource, NodeSource
from dragon.agent.telemetry.process_source import ProcessSource
from dragon.agent.telemetry.queue_source import QueueSource
from dragon.agent.telemetry.source import Source

__all__ = ["sources_of"]


def sources_of(level: int) -> list[Source]:
    """Return the sources that are measured at that level."""
    found: list[Source] = []
    if level >= 2:
        found.append(NodeSource())
    gpus = gpu_source(level) if level >= 3 else None
    if gpus is not None:
        found.append(gpus)
    if level >= 4:
        found += [CoreSource(), ProcessSource(), GroupSource(), QueueSource(), DictionarySource()]
    return found
