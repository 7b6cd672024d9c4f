"""The interface of launchers, and the commands with which they start agents.

A launcher determines the nodes before anything runs (`nodes`), starts one agent on each with the run's token, reports
when a command that starts agents fails, and stops those commands at the end. It does not monitor agents: each is
monitored through its control connection.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
import shlex
import signal
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.membership import Token
from dragon.infrastructure.structs import msgspec
from dragon.infrastructure.system import give_back_limit
from dragon.runtime.credentials import Authority, fingerprint
from dragon.signals import how_ended

_SECRET_SIZE = 32


class Identity(msgspec.Struct, kw_only=True):
    """The front end's certificate and key (PEM), and the run's secret."""

    certificate: bytes
    key: bytes
    secret: bytes

    @classmethod
    def create(cls) -> Identity:
        certificate, key = Authority().issue("front end")
        return cls(certificate=certificate, key=key, secret=secrets.token_bytes(_SECRET_SIZE))

    def token(self, addresses: list[str]) -> Token:
        """Return the token with which agents join at these addresses ("host:port")."""
        return Token(addresses=addresses, fingerprint=fingerprint(self.certificate), secret=self.secret)

    def encode(self) -> str:
        """Return the identity as one line of text."""
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode()

    @classmethod
    def decode(cls, text: str) -> Identity:
        """Return the identity that encode() wrote. Raises ValueError for other text."""
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(text.strip()), type=cls)


_KEPT_LINES = 20
_TERMINATE_TIMEOUT = 5.0
_FAILURE_WINDOW_S = 0.5  # seconds to wait for further failures after the first
_MOST_FAILURES = 8  # failures that are described in full


class LaunchError(DragonError):
    """Raised if the nodes of a run cannot be used; the message says which, and what to check."""


def agent_command(*options: str, join: str = "-") -> list[str]:
    """Return the command that runs an agent, on any node that has this installation at the same path."""
    return [sys.executable, "-m", "dragon", "node", "--join", join, *options]


class Launcher(ABC):
    """A source of nodes."""

    name: str  # the name of the launcher
    nodes: list[str]  # the names of the nodes, as the source prints them; the first is the primary
    command: list[str]  # the command of an agent
    local = False  # whether all nodes are this machine, so that the front end need not be reachable from elsewhere
    identity: Identity | None = None  # the front end's identity, if agents got their token beforehand; else None
    port = 0  # the port for which they got it; else 0

    def __init__(self) -> None:
        self.starters: list[Starter] = []
        self.failures: list[Starter] = []  # those that failed() has reported

    @abstractmethod
    async def start(self, token: Token) -> None:
        """Start one agent per node. Raises LaunchError if that is impossible; returns before they have joined."""

    async def failed(self) -> str:
        """Wait until a command that starts agents has failed. Returns a description of it, and of others that fail soon
        after, with their output. Called again, it waits for further failures."""
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
        """Return the latest output of these commands that was not shown."""
        return "\n".join(told for starter in self.starters if (told := starter.told()))

    def show(self, write: Callable[[bytes], None]) -> None:
        """From now on pass the output of these commands to `write`, beginning with the latest output so far."""
        for starter in self.starters:
            starter.show(write)

    async def stop(self, patience: float) -> None:
        """Wait `patience` seconds for the commands to end by themselves, then end them."""
        await asyncio.gather(*(starter.stop(patience) for starter in self.starters))


class Starter:
    """A running command that starts agents and lasts as long as they do: `srun`, `ssh` or the agent itself."""

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
        """Start `command`, whose standard input is the line `given`. Raises LaunchError if it cannot be executed."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(os.environ if environment is None else environment),
                start_new_session=True,  # the front end handles Ctrl-C
            )
        except OSError as error:
            raise LaunchError(f"cannot start {shlex.join(command[:1])}: {error}") from error
        give_back_limit(process.pid)
        starter = cls(what, process)
        assert process.stdin is not None
        if not process.stdin.is_closing():  # else it has ended already, which failed() reports
            process.stdin.write(given.encode() + b"\n")
            process.stdin.close()
        return starter

    async def failed(self) -> str:
        code = await self.process.wait()
        await self._reader
        how = f"was killed by {how_ended(code)}" if code < 0 else f"ended with code {code}"
        told = self.told()
        return f"{self.what} {how}" + (f":\n{told}" if told else ", and wrote nothing")

    def told(self) -> str:
        return b"".join(self._last).decode(errors="replace").rstrip()

    def show(self, write: Callable[[bytes], None]) -> None:
        """Pass its output so far, and from now on, to `write`."""
        self._write = write
        while self._last:
            write(self._last.popleft())

    async def stop(self, patience: float) -> None:
        """Wait `patience` seconds for its end, then send SIGTERM, and SIGKILL 5 s later."""
        if not await self._ended(patience):
            self._signal(signal.SIGTERM)
            if not await self._ended(_TERMINATE_TIMEOUT):
                self._signal(signal.SIGKILL)
                await self.process.wait()
        # A child that left its session may still have the pipe.
        await asyncio.wait([self._reader], timeout=1.0)
        self._reader.cancel()

    def _signal(self, number: int) -> None:
        # It may have ended before the event loop has noticed.
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


class Simulated(Launcher):
    """`count` agents on this machine. If `cpus` or `gpus` are given, each claims that many."""

    name = "simulated"
    local = True

    def __init__(self, count: int, cpus: int | None = None, gpus: int | None = None) -> None:
        super().__init__()
        self.nodes = [f"node-{index}" for index in range(count)]
        self.shape = {key: number for key, number in (("cpus", cpus), ("gpus", gpus)) if number is not None}
        self.command = agent_command()

    async def start(self, token: Token) -> None:
        shared = {**token.claims, **self.shape, "host_names": self.nodes}
        for index, name in enumerate(self.nodes):
            own = msgspec.structs.replace(token, index=index, claims={**shared, "host_name": name})
            self.starters.append(await Starter.run(f"the agent of {name}", self.command, own.encode()))


# A host that asks for a password or has an unknown key fails with a message instead of waiting for input; one that does
# not answer fails before the join timeout, not minutes later; a connection without traffic is detected as lost.
_SSH_OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30"),
    *("-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=2"),
)
# The variables with which the agent is found there. Everything else is sent to the agents later, encrypted.
_SSH_VARIABLES = ("PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


class Ssh(Launcher):
    """One agent on each of `hosts`. `options` are passed to ssh before the host name."""

    name = "ssh"

    def __init__(self, hosts: Sequence[str], options: Sequence[str] = ()) -> None:
        super().__init__()
        self.nodes = list(hosts)
        self.options = [*_SSH_OPTIONS, *options]
        self.command = agent_command()

    async def start(self, token: Token) -> None:
        await asyncio.gather(*(self._start(index, host, token) for index, host in enumerate(self.nodes)))

    async def _start(self, index: int, host: str, token: Token) -> None:
        variables = [f"{name}={os.environ[name]}" for name in _SSH_VARIABLES if name in os.environ]
        remote = "exec " + shlex.join(["env", *variables, *self.command])
        own = msgspec.structs.replace(token, index=index)
        command = ["ssh", *self.options, "--", host, remote]
        self.starters.append(await Starter.run(f"ssh to {host}", command, own.encode()))
