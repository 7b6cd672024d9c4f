"""Simulated nodes: several on this machine, each with its own agent, arena and host name."""

from __future__ import annotations

import msgspec

from dragon.infrastructure.membership import Token
from dragon.launcher.base import Launcher, Starter, agent_command


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
        """Start the agents of all simulated nodes on this machine."""
        shared = {**token.claims, **self.shape, "host_names": self.nodes}
        for index, name in enumerate(self.nodes):
            own = msgspec.structs.replace(token, index=index, claims={**shared, "host_name": name})
            self.starters.append(await Starter.run(f"the agent of {name}", self.command, own.encode()))
