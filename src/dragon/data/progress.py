"""Shows the progress of long operations on a terminal."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def progress(things: Iterable[T], unit: str, total: int | None = None) -> Iterator[T]:
    """Iterate over `things`; on a terminal with a progress bar if that takes longer than a second and tqdm is
    installed."""
    if importlib.util.find_spec("tqdm") is None:
        return iter(things)
    from tqdm import tqdm

    shown: Iterable[T] = tqdm(things, total=total, unit=f" {unit}", delay=1, disable=None)
    return iter(shown)
