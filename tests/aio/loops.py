"""The event loops in which the tests of asyncio support run."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest
import uvloop

Test = Callable[..., Coroutine[Any, Any, None]]

LOOPS: dict[str, Callable[[Callable[[], Coroutine[Any, Any, None]]], None]] = {
    "asyncio": lambda test: asyncio.run(test()),
    "uvloop": lambda test: uvloop.run(test()),
    "anyio": anyio.run,
}


def in_each_loop(test: Test) -> Callable[..., None]:
    """Run a test that is a coroutine function in each kind of event loop."""
    return pytest.mark.parametrize("loop", LOOPS)(_run_by(test, ["loop"]))


def in_asyncio(test: Test) -> Callable[..., None]:
    """Run a test that is a coroutine function in asyncio's own event loop."""
    return _run_by(test, [])


def _run_by(test: Test, more: list[str]) -> Callable[..., None]:
    def run(**arguments: Any) -> None:
        loop = arguments.pop("loop", "asyncio")
        LOOPS[loop](functools.partial(test, **arguments))

    functools.update_wrapper(run, test)
    del run.__wrapped__  # type: ignore[attr-defined]  # pytest would call it
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind) for name in [*inspect.signature(test).parameters, *more]]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


async def soon() -> None:
    """Let other tasks run until each of them waits."""
    await asyncio.sleep(0.05)
