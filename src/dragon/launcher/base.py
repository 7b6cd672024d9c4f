"""Where nodes come from: what every launcher answers, and the commands that it starts agents with.

A launcher knows which nodes there are before anything runs (`nodes`), starts one agent on each, given the run's token,
tells when a command that it started them with fails, and stops those commands at the end. It does not watch agents:
each is watched through its control connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.limits import give_back_limit
from dragon.infrastructure.membership import Token
from dragon.launcher.identity import Identity
from dragon.signals import how_ended

__all__ = ["LaunchError", "Launcher", "Starter", "agent_command"]

_KEPT_LINES = 20
_TERMINATE_TIMEOUT = 5.0
_FAILURE_WINDOW_S = 0.5  # seconds for which others may fail after the first
_MOST_FAILURES = 8  # that are told in full


class LaunchError(DragonError):
    """The nodes of a run could not be had; the message says which, and what to check."""


def agent_command(*options: str, join: str = "-") -> list[str]:
    """The command that runs an agent, on any node that has this installation at the same path.

    `join` says where its token is: on standard input, in the "environment", or in a file.
    """
    return [sys.executable, "-m", "dragon", "node", "--join", join, *options]


class Launcher(ABC):
    """One source of nodes. `nodes` are their names, as the source prints them; the first is the primary."""

    name: str
    nodes: list[str]
    command: list[str]  # of an agent
    # Whether all nodes are this machine, so that the front end need not be reachable from elsewhere.
    local = False
    # Where agents have been told beforehand whom to join, and at which port.
    identity: Identity | None = None
    port = 0

    def __init__(self) -> None:
        self.starters: list[Starter] = []
        self.failures: list[Starter] = []  # those that failed() has told of

    @abstractmethod
    async def start(self, token: Token) -> None:
        """Start one agent per node. Raises LaunchError where that is impossible; returns before they have joined."""

    async def failed(self) -> str:
        """Waits until a command that starts agents has failed, and says so of it and others, with what they wrote.

        Called again, it waits for more of them.
        """
        left = [starter for starter in self.starters if starter not in self.failures]
        if not left:
            await asyncio.Event().wait()
        waiting = {asyncio.ensure_future(starter.failed()): starter for starter in left}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(waiting, timeout=_FAILURE_WINDOW_S)
            self.failures += [starter for task, starter in waiting.items() if task.done()]
            told = [task.result() for task in waiting if task.done()]
            more = len(told) - _MOST_FAILURES
            return "\n".join(told[:_MOST_FAILURES] + ([f"and {more} more did not start"] if more > 0 else []))
        finally:
            for task in waiting:
                task.cancel()

    def told(self) -> str:
        """What these commands wrote lately, where it was not shown."""
        return "\n".join(told for starter in self.starters if (told := starter.told()))

    def show(self, write: Callable[[bytes], None]) -> None:
        """From now on hand what these commands write, on either stream, to `write`; what they wrote comes first."""
        for starter in self.starters:
            starter.show(write)

    async def stop(self, patience: float) -> None:
        """Wait `patience` seconds for the commands to end by themselves, then end them."""
        await asyncio.gather(*(starter.stop(patience) for starter in self.starters))


class Starter:
    """A command that starts agents and lasts as long as they do: `srun`, `ssh` or the agent itself."""

    def __init__(self, what: str, process: asyncio.subprocess.Process) -> None:
        self.what = what
        self.process = process
        self._last: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._write: Callable[[bytes], None] | None = None
        self._reader = asyncio.ensure_future(self._read())

    @classmethod
    async def run(
        cls, what: str, command: Sequence[str], given: str, environment: Mapping[str, str] | None = None
    ) -> Starter:
        """Start `command`, which reads the line `given`. Raises LaunchError where there is no such program."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(os.environ if environment is None else environment),
                start_new_session=True,  # Ctrl-C in the terminal is the front end's to handle
            )
        except OSError as error:
            raise LaunchError(f"cannot start {shlex.join(command[:1])}: {error}") from error
        give_back_limit(process.pid)
        starter = cls(what, process)
        assert process.stdin is not None
        if not process.stdin.is_closing():  # it has ended already; failed() says how
            process.stdin.write(given.encode() + b"\n")
            process.stdin.close()
        return starter

    async def failed(self) -> str:
        """Waits until it has ended, and says how."""
        code = await self.process.wait()
        await self._reader
        how = f"was killed by {how_ended(code)}" if code < 0 else f"ended with code {code}"
        told = self.told()
        return f"{self.what} {how}" + (f":\n{told}" if told else ", and wrote nothing")

    def told(self) -> str:
        """What it wrote lately, where it was not shown."""
        return b"".join(self._last).decode(errors="replace").rstrip()

    def show(self, write: Callable[[bytes], None]) -> None:
        """Hand what it wrote and writes to `write`."""
        self._write = write
        while self._last:
            write(self._last.popleft())

    async def stop(self, patience: float) -> None:
        """Wait for its end a while, then enforce it."""
        if not await self._ended(patience):
            self._signal(signal.SIGTERM)
            if not await self._ended(_TERMINATE_TIMEOUT):
                self._signal(signal.SIGKILL)
                await self.process.wait()
        # A child that left its session may still have the pipe.
        await asyncio.wait([self._reader], timeout=1.0)
        self._reader.cancel()

    def _signal(self, number: int) -> None:
        # It may have ended a moment ago, of which the loop has not heard yet.
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def _ended(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self.process.wait()
        except TimeoutError:
            return False
        return True

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while data := await self.process.stdout.read(1 << 16):
            if self._write is not None:
                self._write(data)
            else:
                self._last.extend(data.splitlines(keepends=True))
