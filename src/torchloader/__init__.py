"""An elastic data loader for PyTorch, and a scheduler that moves data-loading workers to the jobs that wait for
data."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchloader.loader import ElasticDataLoader as ElasticDataLoader
    from torchloader.loader import LoadingError as LoadingError
    from torchloader.loader import elastic as elastic
    from torchloader.loader import sample_seed as sample_seed

__all__ = ["ElasticDataLoader", "LoadingError", "elastic", "sample_seed"]


def __getattr__(name: str) -> object:
    # The scheduler's commands start without what a loader needs.
    if name in __all__:
        from torchloader import loader

        return getattr(loader, name)
    raise AttributeError(f"module 'torchloader' has no attribute {name!r}")
