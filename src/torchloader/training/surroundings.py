"""The environment of a rank, from the variables that its launcher sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Surroundings"]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A rank's position from torchrun's variables, and what its application master adds to them.

    Args:
        rank, world_size, local_rank: as torchrun counts; a single rank by default.
        application: the name under which its traces and checkpoints are kept.
        folder: the folder of these; None outside of torchloader, where there are none.
        workers: loading workers at first; None outside of torchloader, where the program decides.
        away: the nodes of those workers that run on another node; None if they may not.
        orders, reports: the queues from and to the application master, as base64 of Queue.serialize().
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    application: str = "training"
    folder: Path | None = None
    workers: int | None = None
    away: tuple[str, ...] | None = None
    orders: str = ""
    reports: str = ""

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Surroundings:
        """Read the environment of this process. Raises ValueError, which names the variable, for an invalid number."""

        def number(name: str, otherwise: int) -> int:
            text = environment.get(name, "")
            if text and not text.isdecimal():
                raise ValueError(f"{name} must be a whole number, not {text!r}")
            return int(text) if text else otherwise

        rank = number("RANK", 0)
        folder, away = environment.get("TORCHLOADER_FOLDER"), environment.get("TORCHLOADER_WORKERS_AWAY")
        return cls(
            rank=rank,
            world_size=number("WORLD_SIZE", 1),
            local_rank=number("LOCAL_RANK", rank),
            application=environment.get("TORCHLOADER_APPLICATION") or "training",
            folder=Path(folder) if folder else None,
            workers=number("TORCHLOADER_WORKERS", 0) if environment.get("TORCHLOADER_WORKERS") else None,
            away=None if away is None else tuple(filter(None, away.split(","))),
            orders=environment.get("TORCHLOADER_ORDERS", ""),
            reports=environment.get("TORCHLOADER_REPORTS", ""),
        )
