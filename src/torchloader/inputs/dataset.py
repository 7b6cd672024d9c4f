"""The syntax of the dataset of a job with a built-in network."""

from __future__ import annotations

__all__ = ["EXPECTED", "is_dataset"]

EXPECTED = "images, latency:SECONDS or jpeg:FOLDER"
_SLOWEST_S = 10**6  # seconds for a sample


def is_dataset(text: str) -> bool:
    """Return whether `torchloader.training.train` accepts the text as a dataset."""
    kind, _, argument = text.partition(":")
    if kind == "jpeg":
        return bool(argument)
    if kind != "latency":
        return text == "images"
    try:
        return 0 <= float(argument) <= _SLOWEST_S
    except ValueError:
        return False
