"""A data loader whose number of workers can change while it is used, without changing its batches."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchloader.loader.crew import LoadingError as LoadingError
    from torchloader.loader.loader import Counters as Counters
    from torchloader.loader.loader import ElasticDataLoader as ElasticDataLoader
    from torchloader.loader.loader import elastic as elastic
    from torchloader.loader.randomness import sample_seed as sample_seed

__all__ = ["Counters", "ElasticDataLoader", "LoadingError", "elastic", "sample_seed"]

_MODULES = {"LoadingError": "crew", "sample_seed": "randomness"}


def __getattr__(name: str) -> object:
    # The class is one of PyTorch's, where that is installed: a loading worker starts without.
    if name in __all__:
        return getattr(import_module(f"torchloader.loader.{_MODULES.get(name, 'loader')}"), name)
    raise AttributeError(f"module 'torchloader.loader' has no attribute {name!r}")
