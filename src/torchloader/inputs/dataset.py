"""What a job of a known network trains on, as a user writes it."""

from __future__ import annotations

__all__ = ["EXPECTED", "is_dataset"]

EXPECTED = "images, latency:SECONDS or jpeg:FOLDER"
_SLOWEST_S = 10**6  # seconds for a sample


def is_dataset(text: str) -> bool:
    """Whether it is one of those that `torchloader.training.train` knows."""
    kind, _, argument = text.partition(":")
    if kind == "jpeg":
        return bool(argument)
    if kind != "latency":
        return text == "images"
    try:
        return 0 <= float(argument) <= _SLOWEST_S
    except ValueError:
        return False
