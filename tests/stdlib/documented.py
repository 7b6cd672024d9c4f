"""What the tests of the standard library's documentation share: our context, processes, and how long to wait."""

from __future__ import annotations

import multiprocessing as mp
from typing import Any

import dragon  # noqa: F401  it makes "dragon" a start method

__all__ = ["CONTEXT", "LONG", "ended", "start"]

LONG = 30  # seconds
CONTEXT: Any = mp.get_context("dragon")


def start(target: Any, *args: Any, **options: Any) -> Any:
    """A process that runs that, started."""
    process = CONTEXT.Process(target=target, args=args, **options)
    process.start()
    return process


def ended(process: Any) -> Any:
    """Its exit code, once it has ended."""
    process.join(LONG)
    return process.exitcode
