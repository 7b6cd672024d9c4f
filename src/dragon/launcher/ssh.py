"""Nodes from a list of hosts, reached with the system's `ssh` and the user's configuration of it."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Sequence

import msgspec

from dragon.infrastructure.membership import Token
from dragon.launcher.base import Launcher, Starter, agent_command

# A host that asks for a password or has an unknown key fails with a message instead of waiting for input; one that does
# not answer fails before the join timeout, not minutes later; a connection without traffic is detected as lost.
_OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30"),
    *("-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=2"),
)
# The variables with which the agent is found there. Everything else is sent to the agents later, encrypted.
_VARIABLES = ("PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


class Ssh(Launcher):
    """One agent on each of `hosts`. `options` are passed to ssh before the host name."""

    name = "ssh"

    def __init__(self, hosts: Sequence[str], options: Sequence[str] = ()) -> None:
        super().__init__()
        self.nodes = list(hosts)
        self.options = [*_OPTIONS, *options]
        self.command = agent_command()

    async def start(self, token: Token) -> None:
        """Start the agents of all hosts concurrently."""
        await asyncio.gather(*(self._start(index, host, token) for index, host in enumerate(self.nodes)))

    async def _start(self, index: int, host: str, token: Token) -> None:
        variables = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
        remote = "exec " + shlex.join(["env", *variables, *self.command])
        own = msgspec.structs.replace(token, index=index)
        command = ["ssh", *self.options, "--", host, remote]
        self.starters.append(await Starter.run(f"ssh to {host}", command, own.encode()))
