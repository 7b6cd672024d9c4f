"""Nodes of a PBS job: with the `mpiexec` of PALS, or with plain PBS's own `pbsdsh`."""

from __future__ import annotations

import asyncio
import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

from dragon.infrastructure import configuration
from dragon.infrastructure.membership import Token
from dragon.infrastructure.structs import msgspec
from dragon.launcher.base import Launcher, LaunchError, Starter, agent_command


def read_node_file(environment: Mapping[str, str]) -> list[str]:
    """Return the lines of the job's PBS_NODEFILE: a host for each slot. Raises LaunchError outside of a job."""
    path = environment.get("PBS_NODEFILE", "")
    if not path:
        raise LaunchError("this is not in a PBS job; use `qsub -I -l select=N` or a job script")
    try:
        return [line.strip() for line in Path(path).read_text().splitlines() if line.strip()]
    except OSError as error:
        raise LaunchError(f"PBS_NODEFILE cannot be read: {error}") from error


class _Job(Launcher):
    def __init__(self, count: int = 0, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__()
        slots = read_node_file(environment)
        allocated = list(dict.fromkeys(slots))
        if count > len(allocated):
            raise LaunchError(f"{count} nodes were requested; the job has {len(allocated)}: {', '.join(allocated)}")
        self.nodes = allocated[: count or None]
        self.slots = [slots.index(node) for node in self.nodes]


class Pals(_Job):
    """The first `count` nodes of the job, or all: one `mpiexec` of PALS starts all agents."""

    name = "pbs+pals"

    def __init__(self, count: int = 0, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__(count, environment)
        self.command = agent_command("--index-from", "PALS_RANKID", join="environment")

    async def start(self, token: Token) -> None:
        # PALS forwards its standard input to the first rank only, so the token is in the environment, which other
        # users cannot read; the agent removes it from there.
        environment = {**os.environ, "DRAGON_JOIN": token.encode()}
        command = [*self.mpiexec(), *self.command]
        self.starters.append(await Starter.run("mpiexec", command, "", environment))

    def mpiexec(self) -> list[str]:
        """Return the command before the agent's own: that of `dragon-config add --backend-mpiexec-override`, or the
        default."""
        count = str(len(self.nodes))
        override = configuration.read().get("backend_mpiexec_override")
        if override:
            nodes = ",".join(self.nodes)
            return shlex.split(override.replace("{nnodes}", count).replace("{nodelist}", nodes))
        return ["mpiexec", "--np", count, "--ppn", "1", "--hosts", ",".join(self.nodes), "--cpu-bind", "none"]


class Pbs(_Job):
    """The first `count` nodes of the job, or all: one `pbsdsh` for each. pbsdsh forwards neither standard input nor
    environment, so each token is in a file of the home folder that only this user can read, until the agent has read
    and removed it."""

    name = "pbs"

    def __init__(self, count: int = 0, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__(count, environment)
        self.command = agent_command(join="")  # a file of each agent's own
        self._tokens: list[Path] = []

    async def start(self, token: Token) -> None:
        await asyncio.gather(*(self._start(index, token) for index in range(len(self.nodes))))

    async def _start(self, index: int, token: Token) -> None:
        own = msgspec.structs.replace(token, index=index)
        descriptor, file = tempfile.mkstemp(prefix=".dragon-join-", dir=Path.home())  # 0600
        self._tokens.append(Path(file))
        with open(descriptor, "w") as opened:
            opened.write(own.encode())
        command = [*self.pbsdsh(index), *self.command[:-1], file]
        self.starters.append(await Starter.run(f"pbsdsh on {self.nodes[index]}", command, ""))

    def pbsdsh(self, index: int) -> list[str]:
        """Return the command before the agent's own."""
        path = os.environ.get("PYTHONPATH")
        variables = [f"PYTHONPATH={path}"] if path else []
        return ["pbsdsh", "-n", str(self.slots[index]), "--", "/usr/bin/env", *variables]

    async def stop(self, patience: float) -> None:
        """Delete the tokens of agents that have not started, then stop the commands."""
        for file in self._tokens:
            file.unlink(missing_ok=True)  # exists if the agent has not started
        await super().stop(patience)
