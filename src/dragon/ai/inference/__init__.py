"""The names of dragonhpc's inference package, which is not supported: each raises an error that says what to use
instead."""

from __future__ import annotations

from typing import NoReturn

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
    def __init__(self, *args: object, **kwargs: object) -> None:
        _refuse(type(self).__name__)


def _refuse(name: str) -> NoReturn:
    raise NotSupportedError(
        f"dragon.ai.inference.{name} is not offered: run the engine of your choice (vLLM, Transformers) in the workers "
        "of a Pool or a ProcessGroup with policies for GPUs, System().gpu_policies()"
    )


class Inference(_NotOffered):
    """Not supported: raises NotSupportedError."""


class InferenceConfig(_NotOffered):
    """Not supported: raises NotSupportedError."""


class HardwareConfig(_NotOffered):
    """Not supported: raises NotSupportedError."""


class ModelConfig(_NotOffered):
    """Not supported: raises NotSupportedError."""


class BatchingConfig(_NotOffered):
    """Not supported: raises NotSupportedError."""


class GuardrailsConfig(_NotOffered):
    """Not supported: raises NotSupportedError."""


class DynamicWorkerConfig(_NotOffered):
    """Not supported: raises NotSupportedError."""
