"""Which GPUs compute more slowly than the others."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterable
from typing import Any

from dragon.telemetry.collector_detector import CollectorDetectorGroup

__all__ = ["SlowGPUDetector"]


class SlowGPUDetector(CollectorDetectorGroup):
    """Has every GPU of the run multiply matrices, and says which take much longer than is usual. The metric is
    `gpu_test_seconds`.

    It needs PyTorch. A GPU that is busy meanwhile is slower too, so this is for a time before the program's own work.
    `collector_args` may say the work, `{"size": 4096, "repeats": 10}`; `analysis_args` are those of
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
    def collector_test(args: Any) -> float:
        """The seconds that the GPU takes for multiplications of square matrices, after one that is not counted."""
        return _multiplication_seconds(**(args or {}))

    def start(self) -> None:
        """The same as of any group. Raises PolicyError without a GPU, ImportError without PyTorch."""
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
    product[0, 0].item()  # waits for all that the device has been given
    begin = time.perf_counter()
    for _ in range(repeats):
        torch.mm(left, right, out=product)
    product[0, 0].item()
    return time.perf_counter() - begin
