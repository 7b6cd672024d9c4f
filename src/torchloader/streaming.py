"""Parts of iterable-style datasets: a worker's part of the items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from torchloader.loader.source import current_share

__all__ = ["shard"]

Item = TypeVar("Item")


def shard(items: Iterable[Item]) -> Iterator[Item]:
    """This stream's part of the items: every n-th, of n streams. For use in an __iter__(), also below PyTorch's
    DataLoader; outside of a worker all items."""
    number, streams = current_share()
    return islice(items, number, None, streams)
