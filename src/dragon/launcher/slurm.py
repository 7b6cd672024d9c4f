"""Nodes of a Slurm allocation: one `srun` starts all agents, in `salloc` and in `sbatch`."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping

from dragon.infrastructure.membership import Token
from dragon.launcher.base import Launcher, LaunchError, Starter, agent_command
from dragon.launcher.hosts import expand
from dragon.runtime.site_launcher import OF_ANOTHER_STEP

# If a job requests GPUs in total or per task, a step with one task on each node gets fewer than the node's GPUs.
_NOT_BY_NODE = ("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_TRES_PER_TASK")
_COMMAND_TIMEOUT_S = 10.0


class Slurm(Launcher):
    """The first `count` nodes of the allocation that this process is in, or all of them."""

    name = "slurm"

    def __init__(self, count: int = 0, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__()
        listed = environment.get("SLURM_JOB_NODELIST", "")
        if not listed or "SLURM_JOB_ID" not in environment:
            raise LaunchError("this is not in a Slurm allocation; use `salloc --nodes=N` or `sbatch` first")
        self.environment = environment
        allocated = expand(listed)
        if count > len(allocated):
            raise LaunchError(f"{count} nodes were requested; the allocation has {len(allocated)}: {listed}")
        self.nodes = allocated[: count or None]
        self.command = agent_command("--index-from", "SLURM_NODEID", "--name-from", "SLURMD_NODENAME")

    async def start(self, token: Token) -> None:
        """Start the agents of all nodes with one `srun`."""
        gpus = ""
        if any(name in self.environment for name in _NOT_BY_NODE):
            gpus = gpus_of_each_node(await self._describe_job())
        # The job's variables for tasks do not apply to agents, which use whole nodes; programs get them by --export.
        own = {name: text for name, text in self.environment.items() if name not in OF_ANOTHER_STEP}
        # With --input=all each task gets the standard input, so the token need not be anywhere else.
        self.starters.append(await Starter.run("srun", [*self.srun(gpus), *self.command], token.encode(), own))

    async def _describe_job(self) -> str:
        """Return the output of `scontrol` for the job; "" if it does not answer."""
        command = ("scontrol", "show", "job", "--details", "--oneliner", self.environment["SLURM_JOB_ID"])
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=null, stdout=pipe, stderr=null)
        except OSError:
            return ""
        try:
            async with asyncio.timeout(_COMMAND_TIMEOUT_S):
                return (await process.communicate())[0].decode()
        except TimeoutError:
            process.kill()
            await process.wait()
            return ""

    def srun(self, gpus: str = "") -> list[str]:
        """Return the command before the agent's own. `gpus`: the GPUs per node if srun needs it, else ""."""
        count = len(self.nodes)
        told = [
            f"{name}={text}" for name in OF_ANOTHER_STEP if (text := self.environment.get(name)) and "," not in text
        ]
        return [
            "srun",
            f"--nodes={count}",
            f"--ntasks={count}",
            "--ntasks-per-node=1",
            f"--nodelist={','.join(self.nodes)}",
            "--overlap",  # share resources with other steps of the job
            "--cpu-bind=none",
            f"--export={','.join(['ALL', *told])}",
            "--input=all",
            "--kill-on-bad-exit=0",  # a node that fails does not end the others
            "--no-kill",
            "--unbuffered",
            "--quiet",
            *([f"--gpus-per-node={gpus}"] if gpus else []),
        ]


def gpus_of_each_node(job: str) -> str:
    """Return the number of GPUs per node from `scontrol show job --details`; "" if nodes differ, or there are none."""
    found = re.findall(r"\bNodes=\S+ CPU_IDs=\S* Mem=\S* GRES=(\S*)", job)
    counts = {sum(map(int, re.findall(r"\bgpu(?::[^:,(]+)?:(\d+)", one))) for one in found}
    return str(counts.pop() or "") if len(counts) == 1 else ""
