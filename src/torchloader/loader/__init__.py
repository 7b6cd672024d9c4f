"""A data loader whose workers come and go while it is used, without a change of what it gives."""

from torchloader.loader.counters import Counters
from torchloader.loader.crew import LoadingError
from torchloader.loader.loader import ElasticDataLoader

__all__ = ["Counters", "ElasticDataLoader", "LoadingError"]
