"""A rendezvous that agents join, and that callers of all kinds connect to."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from typing import Any

import msgspec
import uvloop

from dragon.control import Control, join
from dragon.infrastructure.membership import Membership, Token
from dragon.infrastructure.node_desc import NodeDescriptor
from dragon.launcher.rendezvous import Rendezvous
from dragon.runtime.credentials import pinned_context


def node(name: str) -> NodeDescriptor:
    return NodeDescriptor(
        host_name=name, h_uid=hash(name), addresses=[], cpus=[0], gpus=[], gpu_vendor="", physical_mem=1
    )


def asynchronously(work: Coroutine[Any, Any, Any], timeout: float = 60) -> Any:
    """Run a coroutine on a new event loop, with a timeout."""

    async def bounded() -> Any:
        async with asyncio.timeout(timeout):
            return await work

    return uvloop.run(bounded())


class Meeting(Rendezvous):
    """A rendezvous that listens on this machine."""

    def __init__(self, *nodes: str) -> None:
        super().__init__(list(nodes))
        self.token = self.listen(["127.0.0.1"])

    def token_of(self, index: int | None) -> Token:
        return msgspec.structs.replace(self.token, index=index)

    async def end(self) -> None:
        """Close everything. (A loop of uvloop does not close while one of its transports is open.)"""
        self.close()
        for control in self.controls:
            if control is not None:
                control.close()
        await asyncio.sleep(0.02)

    async def join(self, name: str, index: int | None = None, timeout: float = 20) -> tuple[Membership, Control]:
        return await join(self.token_of(index), node(name), ["10.0.0.1"], 7, timeout)

    async def call(self) -> Control:
        """Connect as a caller that speaks TLS but does not authenticate."""
        loop = asyncio.get_running_loop()
        context: ssl.SSLContext = pinned_context()
        _, control = await loop.create_connection(lambda: Control("the front end"), "127.0.0.1", self.port, ssl=context)
        return control
