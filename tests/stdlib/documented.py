"""The context, the processes and the timeout of the tests of the standard library's documentation."""

from __future__ import annotations

import multiprocessing as mp
from typing import Any

import dragon  # noqa: F401  it makes "dragon" a start method

__all__ = ["CONTEXT", "LONG", "ended", "start"]

LONG = 30  # seconds
CONTEXT: Any = mp.get_context("dragon")


def start(target: Any, *args: Any, **options: Any) -> Any:
    """Start a process that runs a function; return the process."""
    process = CONTEXT.Process(target=target, args=args, **options)
    process.start()
    return process


def ended(process: Any) -> Any:
    """Join a process; return its exit code."""
    process.join(LONG)
    return process.exitcode
