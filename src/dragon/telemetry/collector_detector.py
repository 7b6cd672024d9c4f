"""Collectors on every node or GPU, combined with a detector of those that stand out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dragon.telemetry.collectors import CollectorGroup
from dragon.telemetry.detector import Detector

__all__ = ["CollectorDetectorGroup"]


class CollectorDetectorGroup(CollectorGroup, Detector):
    """A CollectorGroup with a Detector of its metric: `collector_test` measures, `analyze_data` decides, and
    slow_hosts() returns the slow nodes. Its arguments are those of both.

    Examples:
        >>> from dragon.telemetry import CollectorDetectorGroup, Telemetry
        >>> Telemetry().start(1)
        >>> with CollectorDetectorGroup("hash_seconds", collection_rate=1) as group:
        ...     group.slow_hosts()  # of one node none is slower than the others
        []
    """

    def __init__(
        self,
        metric_name: str = "user-cdg",
        per_gpu: bool = False,
        collection_rate: float = 3,
        sacred_nodes: Iterable[str] | None = None,
        restartable_ddicts: Iterable[Any] | None = None,
        tags: Mapping[str, object] | None = None,
        collector_args: Any = None,
        analysis_args: Any = None,
    ) -> None:
        CollectorGroup.__init__(self, metric_name, per_gpu, collection_rate, collector_args)
        Detector.__init__(self, metric_name, collection_rate, sacred_nodes, restartable_ddicts, tags, analysis_args)

    def start(self) -> None:
        """Start the collectors and the detector. Raises what either raises."""
        CollectorGroup.start(self)
        Detector.start(self)

    def stop(self, patience: float = 5.0) -> None:
        """Stop the detector and the collectors. Raises what either raises."""
        try:
            Detector.stop(self)
        finally:
            CollectorGroup.stop(self, patience)
