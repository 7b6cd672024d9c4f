"""Awaits the end of processes and process groups."""

from __future__ import annotations

from multiprocessing.process import BaseProcess
from typing import Any

from dragon.aio.waiting import wait
from dragon.native.process_group import ProcessGroup
from dragon.runtime.async_client import ask
from dragon.runtime.protocol.processes import AwaitEnd

__all__ = ["join"]


async def join(process: Any) -> Any:
    """Wait for a process or ProcessGroup to end. Returns or raises what its own join() does.

    `process` is one of dragon.native, or of multiprocessing with the start method "dragon"; TypeError for one of
    another start method.
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
    """Return the puid of a process of multiprocessing. Raises TypeError for one of another start method."""
    puid = getattr(process._popen, "puid", None)
    if puid is None:
        raise TypeError(f"aio.join() takes processes of the start method 'dragon', not {process!r}")
    return int(puid)
