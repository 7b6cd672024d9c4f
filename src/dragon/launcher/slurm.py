"""Nodes of a Slurm allocation: one `srun` starts all agents, in `salloc` and in `sbatch`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dragon.infrastructure.membership import Token
from dragon.launcher.base import Launcher, LaunchError, Starter, agent_command
from dragon.launcher.hosts import expand

__all__ = ["Slurm"]


class Slurm(Launcher):
    """The first `count` nodes of the allocation that this process is in, or all of them.

    Raises LaunchError where there is no allocation, or too small a one.
    """

    name = "slurm"

    def __init__(self, count: int = 0, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__()
        listed = environment.get("SLURM_JOB_NODELIST", "")
        if not listed or "SLURM_JOB_ID" not in environment:
            raise LaunchError("this is not in a Slurm allocation; use `salloc --nodes=N` or `sbatch` first")
        allocated = expand(listed)
        if count > len(allocated):
            raise LaunchError(f"{count} nodes were asked for; the allocation has {len(allocated)}: {listed}")
        self.nodes = allocated[: count or None]
        self.command = agent_command("--index-from", "SLURM_NODEID", "--name-from", "SLURMD_NODENAME")

    async def start(self, token: Token) -> None:
        # By default each task gets all of its standard input, so the token need not be anywhere else.
        self.starters.append(await Starter.run("srun", [*self.srun(), *self.command], token.encode()))

    def srun(self) -> list[str]:
        """The command before the agent's own."""
        count = len(self.nodes)
        return [
            "srun",
            f"--nodes={count}",
            f"--ntasks={count}",
            "--ntasks-per-node=1",
            f"--nodelist={','.join(self.nodes)}",
            "--overlap",  # beside other steps of the job
            "--cpu-bind=none",
            "--export=ALL",
            "--input=all",
            "--kill-on-bad-exit=0",  # one node that fails does not take the others with it
            "--no-kill",
            "--unbuffered",
            "--quiet",
        ]
