"""A stand-in agent: it joins and handles control messages, with plain subprocesses instead of a runtime."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from types import SimpleNamespace

import msgspec

from dragon.cli import node
from dragon.control import Control, JoinError, join
from dragon.infrastructure.membership import Membership, Token
from dragon.infrastructure.node_desc import describe_this_node
from dragon.runtime.protocol.agents import (
    Bye,
    Clear,
    HeadExited,
    Input,
    NodeLost,
    SignalHead,
    StartHead,
    WantsInput,
    Wrote,
)
from dragon.runtime.protocol.request import Caller
from dragon.runtime.rpc import Table, serves


class StandIn:
    def __init__(self, membership: Membership, control: Control) -> None:
        self.membership = membership
        self.control = control
        self.process: asyncio.subprocess.Process | None = None
        self.tasks: set[asyncio.Future[None]] = set()
        self.over = asyncio.Event()
        self.told = asyncio.Event()  # notification that the head process has ended
        self.table = Table()
        self.table.serve(self)
        control.serve(self.serve, self.end)
        control.on_lost = lambda reason: self.over.set()

    def serve(self, body: msgspec.Raw) -> object:
        return self.table.do(self.table.decode(body, ()), Caller(0))

    def end(self) -> None:
        self.tasks.add(asyncio.ensure_future(self.on_end()))

    @serves(NodeLost)
    def on_lost(self, index: int, host_name: str, reason: str, epoch: int) -> None:
        text = f"{self.membership.index} heard that {index} {host_name} is lost, decision {epoch}"
        self.control.send(Wrote(2, f"{text}\n".encode()))

    @serves(StartHead)
    async def on_start_head(
        self, executable: str, arguments: list[str], environment: dict[str, str], folder: str, signals: list[int]
    ) -> None:
        index, members = self.membership.index, self.membership.members
        self.process = await asyncio.create_subprocess_exec(
            executable,
            *arguments,
            env={**environment, "INDEX": str(index), "NODES": " ".join(m.node.host_name for m in members)},
            cwd=folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        self.control.send(WantsInput())
        await asyncio.gather(self.forward(1, self.process.stdout), self.forward(2, self.process.stderr))
        self.control.send(HeadExited(await self.process.wait()))
        self.told.set()

    async def forward(self, number: int, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        while data := await stream.read(65536):
            self.control.send(Wrote(number, data))

    @serves(Input)
    async def on_input(self, data: bytes) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        if data:
            self.process.stdin.write(data)
            await self.process.stdin.drain()
            self.control.send(WantsInput())
        else:
            self.process.stdin.close()

    @serves(SignalHead)
    def on_signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    @serves(Clear)
    async def on_clear(self) -> None:
        self.on_signal(signal.SIGKILL)
        if self.process is not None:
            await self.told.wait()
            self.told.clear()

    async def on_end(self) -> None:
        self.on_signal(signal.SIGKILL)
        if self.process is not None:
            await self.process.wait()
        self.control.send(Bye())
        self.control.close()
        self.over.set()


def serve_options() -> Token:
    """Parse the token as `dragon node` does."""
    tokens: list[Token] = []
    sys.modules["dragon.agent.node"] = SimpleNamespace(serve=lambda token: tokens.append(token) or 0)  # type: ignore
    node.main(sys.argv[1:])
    return tokens[0]


async def main() -> int:
    token = serve_options()
    if token.index is not None and str(token.index) in os.environ.get("STAND_IN_SILENT", "").split(","):
        await asyncio.sleep(300)
    if str(token.index) in os.environ.get("STAND_IN_FAILING", "").split(","):
        print("no memory left", file=sys.stderr)
        return 3
    this = describe_this_node()
    this = this._replace(host_name=token.claims.get("host_name", this.host_name))
    try:
        membership, control = await join(token, this, ["127.0.0.1"], 1, 30)
    except JoinError as error:
        print(error, file=sys.stderr)
        return 1
    await StandIn(membership, control).over.wait()
    await asyncio.sleep(0.05)  # flush the messages that were sent
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
