"""A rank of torchloader's own training program, in a forked process."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["train"]


def train(arguments: Sequence[str]) -> None:
    """Train as `python -m torchloader.training.train` would. Ends the process."""
    from torchloader.training.train import main

    sys.exit(main(arguments))
