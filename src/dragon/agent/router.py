"""Routes requests to where they are executed: in this agent, the agent of another node, or all agents."""

from __future__ import annotations

import asyncio
from typing import TypeVar, cast

import msgspec

from dragon.agent.objects.peers import Peers
from dragon.agent.wire.responses import value_of
from dragon.agent.wire.table import Table
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.facts import node_of_puid
from dragon.infrastructure.messages import encode, joined
from dragon.runtime.protocol.processes import FindProcess, Known
from dragon.runtime.protocol.request import Caller, OfProcess, Request, Where

_Answer = TypeVar("_Answer")


class Router:
    """Routes requests to the place that they name. `table` executes them on this node, `peers` are the others."""

    def __init__(self, table: Table, peers: Peers) -> None:
        self._table = table
        self._peers = peers

    def do(self, request: Request[object], caller: Caller) -> object:
        """Execute or forward a request. Returns the answer or a future of it; encoded if other nodes are involved."""
        match request.place():
            case Where.ALL:
                return asyncio.ensure_future(self._of_all(request, caller))
            case Where.NAMED:
                return asyncio.ensure_future(self._of_named(request, caller))
            case int() as node if node != self._peers.index and 0 <= node < len(self._peers.members):
                return self._peers.pass_on(node, request)
        return self._table.do(request, caller)

    async def _of_all(self, request: Request[object], caller: Caller) -> msgspec.Raw:
        """Return the answers of all nodes, as one list; a node that is lost meanwhile is left out.

        The answers are joined in encoded form, since decoding those of hundreds of nodes would take too long.
        """
        here = self._table.do(request, caller)
        asked = [self._peers.call(node, request) for node in self._peers.others()]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = [encode(await here if isinstance(here, asyncio.Future) else here)]
        for answer in answers:
            if not isinstance(answer, BaseException):
                found.append(value_of(answer))
            elif not isinstance(answer, NodeLostError):
                raise answer
        return joined(found)

    async def _of_named(self, request: Request[object], caller: Caller) -> object:
        """Return the answer of the node that has the named thing. Raises LookupError."""
        match request:
            case FindProcess(str() as name):
                return await self._process_named(name, caller)
            case OfProcess(str() as name):
                puid = (await self._process_named(name, caller)).puid
                return await self._on(node_of_puid(puid), msgspec.structs.replace(request, identifier=puid), caller)
        own, *others = await self._on_each(request, caller)
        for answer in (own, *others):
            if not isinstance(answer, BaseException):
                return answer
        raise cast(BaseException, own)

    async def _process_named(self, name: str, caller: Caller) -> Known:
        """Return the record of the process that last had this name, preferring live ones. Raises LookupError."""
        answers = await self._on_each(FindProcess(name), caller)
        found = [answer for answer in answers if not isinstance(answer, BaseException)]
        if not found:
            raise LookupError(f"the run has no process {name!r}")
        return max(found, key=lambda known: (known.code is None, known.started))

    async def _on_each(self, request: Request[_Answer], caller: Caller) -> list[_Answer | BaseException]:
        """Return each node's answer, or error, beginning with this node."""
        nodes = [self._peers.index, *self._peers.others()]
        return await asyncio.gather(*(self._on(node, request, caller) for node in nodes), return_exceptions=True)

    async def _on(self, node: int, request: Request[_Answer], caller: Caller) -> _Answer:
        """Return the answer of one node."""
        if node != self._peers.index:
            return await self._peers.ask(node, request)
        answer = self._table.do(request, caller)
        return await answer if isinstance(answer, asyncio.Future) else answer
