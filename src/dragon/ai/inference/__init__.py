"""Not offered; the names are here so that libraries that look for them find out by an error that says what to use."""

from __future__ import annotations

from typing import Any, NoReturn

from dragon.infrastructure.errors import NotSupportedError

__all__ = [
    "BatchingConfig",
    "DynamicWorkerConfig",
    "GuardrailsConfig",
    "HardwareConfig",
    "Inference",
    "InferenceConfig",
    "ModelConfig",
]


class _NotOffered:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse(type(self).__name__)


def _refuse(name: str) -> NoReturn:
    raise NotSupportedError(
        f"dragon.ai.inference.{name} is not offered: run the engine of your choice (vLLM, Transformers) in the workers "
        "of a Pool or a ProcessGroup with policies for GPUs, System().gpu_policies()"
    )


class Inference(_NotOffered):
    """Not offered."""


class InferenceConfig(_NotOffered):
    """Not offered."""


class HardwareConfig(_NotOffered):
    """Not offered."""


class ModelConfig(_NotOffered):
    """Not offered."""


class BatchingConfig(_NotOffered):
    """Not offered."""


class GuardrailsConfig(_NotOffered):
    """Not offered."""


class DynamicWorkerConfig(_NotOffered):
    """Not offered."""
