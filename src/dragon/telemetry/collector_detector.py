"""Collectors on every node or GPU, combined with a detector of those that stand out, such as slow GPUs."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterable, Mapping
from typing import Any

from dragon.telemetry.collectors import CollectorGroup
from dragon.telemetry.detector import Detector

__all__ = ["CollectorDetectorGroup", "SlowGPUDetector"]


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


class SlowGPUDetector(CollectorDetectorGroup):
    """Multiplies matrices on every GPU of the run, and reports those that take much longer than usual. The metric is
    `gpu_test_seconds`.

    It needs PyTorch. A GPU that is busy meanwhile is slower too, so use it before the program's own work.
    `collector_args` may set the work, `{"size": 4096, "repeats": 10}`; `analysis_args` are those of
    Detector.analyze_data().

    Examples:
        >>> import time
        >>> from dragon.native.machine import System
        >>> from dragon.telemetry import SlowGPUDetector, Telemetry
        >>> Telemetry().start(1)
        >>> if System().gpu_policies():
        ...     with SlowGPUDetector(collection_rate=1) as detector:
        ...         time.sleep(10)
        ...         slow = detector.slow_hosts()
    """

    def __init__(
        self,
        collection_rate: float = 3,
        restartable_ddicts: Iterable[Any] | None = None,
        analysis_args: Any = None,
        collector_args: Any = None,
    ) -> None:
        super().__init__(
            "gpu_test_seconds",
            per_gpu=True,
            collection_rate=collection_rate,
            restartable_ddicts=restartable_ddicts,
            analysis_args=analysis_args,
            collector_args=collector_args,
        )

    @staticmethod
    def collector_test(collector_args: Any) -> float:
        """Return the seconds that the GPU takes for multiplications of square matrices, after an uncounted
        first one."""
        return _multiplication_seconds(**(collector_args or {}))

    def start(self) -> None:
        """Start the collectors and the detector. Raises PolicyError without a GPU, ImportError without PyTorch, and
        what CollectorDetectorGroup.start() raises."""
        self.generate_policies()
        own_test = type(self).collector_test is not SlowGPUDetector.collector_test
        if not own_test and importlib.util.find_spec("torch") is None:
            raise ImportError(
                "SlowGPUDetector computes with PyTorch, which is not installed: pip install torch, "
                "or override collector_test"
            )
        super().start()


def _multiplication_seconds(size: int = 4096, repeats: int = 10, device: str = "cuda") -> float:
    import torch

    left, right = (torch.rand(size, size, device=device) for _ in range(2))
    product = left @ right
    product[0, 0].item()  # waits until the device has completed its queue
    begin = time.perf_counter()
    for _ in range(repeats):
        torch.mm(left, right, out=product)
    product[0, 0].item()
    return time.perf_counter() - begin
