"""The rank of this trainer, and the seed that all trainers of an epoch share."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from torchloader.loader.checks import check_number

__all__ = ["distributed_place", "distributed_rank", "place_of", "seed_of", "warn_of_ranks"]

_SHARED_SEED = 0  # as that of torch.utils.data.DistributedSampler


def place_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return (rank, world size). Raises TypeError or ValueError if they are not valid."""
    check_number(**{name: value for name, value in (("rank", rank), ("world_size", world_size)) if value is not None})
    if rank is None and world_size is not None and world_size > 1:
        raise ValueError(f"world_size={world_size} needs rank=: without, every rank would get the samples of rank 0")
    rank, world_size = rank or 0, 1 if world_size is None else world_size
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size}")
    return int(rank), int(world_size)


def seed_of(seed: int | None, generator: Any, world_size: int) -> int:
    """Return the seed of a loader. Raises ValueError if ranks might have different ones."""
    if seed is not None:
        return int(seed)
    if world_size > 1:
        if generator is not None:
            raise ValueError(
                f"with world_size={world_size} all ranks must shuffle alike, and the seeds of their generators may "
                "differ: pass seed= (the same on all ranks) instead of generator="
            )
        return _SHARED_SEED
    if generator is not None:
        return int(generator.initial_seed())
    torch = sys.modules.get("torch")
    return 0 if torch is None else int(torch.initial_seed())


def distributed_place() -> tuple[int, int]:
    """Return (rank, world size) of torch.distributed; (0, 1) if it is not initialized."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def distributed_rank() -> int:
    """Return the rank in torch.distributed; 0 if it is not initialized."""
    return distributed_place()[0]


def warn_of_ranks() -> bool:
    """Warn if torch.distributed has several ranks, for a loader without rank and world_size. Returns whether it has."""
    _, world_size = distributed_place()
    if world_size < 2:
        return False
    warnings.warn(
        f"torch.distributed has {world_size} ranks, and this loader gives every rank all samples: pass rank= and "
        "world_size= (or a DistributedSampler) to share them, world_size=1 if every rank is to have all",
        stacklevel=4,
    )
    return True
