"""Awaiting the end of processes and of groups of them."""

from __future__ import annotations

from multiprocessing.process import BaseProcess
from typing import Any

from dragon.aio.waiting import wait
from dragon.native.process_group import ProcessGroup
from dragon.runtime.async_client import ask
from dragon.runtime.protocol.processes import AwaitEnd

__all__ = ["join"]


async def join(process: Any) -> Any:
    """Wait for the end of a process or of a ProcessGroup; what its own join() returns, or raises.

    `process` is one of dragon.native, or of multiprocessing with the start method "dragon".
    """
    if isinstance(process, ProcessGroup):
        await process._wait_with(lambda words, word, value: wait(words, "Words", "wait", word, value))
        return process.join()
    if isinstance(process, BaseProcess):
        if process.is_alive():
            await ask(AwaitEnd(_puid(process)))
    elif process.is_alive:
        await ask(AwaitEnd(process.puid))
    return process.join()


def _puid(process: Any) -> int:
    """The id in the run of a process of multiprocessing. Raises TypeError for one that another start method started."""
    puid = getattr(process._popen, "puid", None)
    if puid is None:
        raise TypeError(f"aio.join() takes processes of the start method 'dragon', not {process!r}")
    return int(puid)
