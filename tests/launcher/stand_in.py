"""A stand-in agent: it joins and handles control messages, with plain subprocesses instead of a runtime."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from types import SimpleNamespace

from dragon.cli import node
from dragon.control import Control, JoinError, join
from dragon.infrastructure.membership import Membership, Token
from dragon.infrastructure.node_desc import describe_this_node
from dragon.runtime.protocol.front_end import (
    Bye,
    Clear,
    Cleared,
    End,
    HeadExited,
    Input,
    Log,
    Message,
    NodeLost,
    SignalHead,
    StartHead,
    WantsInput,
    Wrote,
)


class StandIn:
    def __init__(self, membership: Membership, control: Control) -> None:
        self.membership = membership
        self.control = control
        self.process: asyncio.subprocess.Process | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.over = asyncio.Event()
        self.told = asyncio.Event()  # notification that the head process has ended
        control.on_message = self.on_message
        control.on_lost = lambda reason: self.over.set()

    def on_message(self, message: Message) -> None:
        task = asyncio.ensure_future(self.do(message))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def do(self, message: Message) -> None:
        match message:
            case StartHead():
                await self.on_start_head(message)
            case Input(data):
                await self.on_input(data)
            case SignalHead(number):
                self.on_signal(number)
            case NodeLost(index, host_name, _, epoch):
                me = self.membership.index
                self.control.send(Log(f"{me} heard that {index} {host_name} is lost, decision {epoch}"))
            case Clear():
                await self.on_clear()
            case End():
                await self.on_end()

    async def on_start_head(self, head: StartHead) -> None:
        index, members = self.membership.index, self.membership.members
        self.process = await asyncio.create_subprocess_exec(
            head.executable,
            *head.arguments,
            env={**head.environment, "INDEX": str(index), "NODES": " ".join(m.node.host_name for m in members)},
            cwd=head.folder,
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

    async def on_input(self, data: bytes) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        if data:
            self.process.stdin.write(data)
            await self.process.stdin.drain()
            self.control.send(WantsInput())
        else:
            self.process.stdin.close()

    def on_signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    async def on_clear(self) -> None:
        self.on_signal(signal.SIGKILL)
        if self.process is not None:
            await self.told.wait()
            self.told.clear()
        self.control.send(Cleared())

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
    this.host_name = token.claims.get("host_name", this.host_name)
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
