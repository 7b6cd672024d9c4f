"""Nodes of a Slurm allocation: one `srun` starts all agents, in `salloc` and in `sbatch`."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from dragon.infrastructure.membership import Token
from dragon.infrastructure.structs import msgspec
from dragon.launcher.base import Launcher, LaunchError, Starter, agent_command
from dragon.runtime.site_launcher import OF_ANOTHER_STEP

_MOST = 100_000
_RANGES = re.compile(r"\[([^\]\[]*)\]")


def expand(text: str) -> list[str]:
    """Return the hosts of a list like `gpu[01-03,7],login`, in its order. Raises ValueError for an invalid list."""
    hosts = []
    for part in _split(text):
        hosts += _expand_one(part)
    return hosts


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, begin = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise ValueError(f"{text!r} has brackets that do not match")
        if letter == "," and depth == 0:
            parts.append(text[begin:position])
            begin = position + 1
    if depth:
        raise ValueError(f"{text!r} has brackets that do not match")
    return [part.strip() for part in [*parts, text[begin:]] if part.strip()]


def _expand_one(part: str) -> list[str]:
    found = _RANGES.search(part)
    if found is None:
        return [part]
    before, after = part[: found.start()], part[found.end() :]
    return [f"{before}{number}{rest}" for number in _numbers(found[1]) for rest in _expand_one(after)]


def _numbers(text: str) -> Iterable[str]:
    for item in text.split(","):
        first, dash, last = item.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise ValueError(f"{item!r} is not a number or a range of numbers")
        if int(last or first) - int(first) >= _MOST:
            raise ValueError(f"{item!r} is a range of more than {_MOST} hosts")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}d}"


def unique(hosts: Iterable[str]) -> list[str]:
    """Return each host once, in the order of first occurrences."""
    return list(dict.fromkeys(hosts))


def read_host_file(path: str) -> list[str]:
    """Read a file with one host per line; `#` begins a comment, and words after the first (`slots=4`) are ignored."""
    try:
        text = Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    hosts = unique(host for words in lines if words for host in expand(words[0]))
    if not hosts:
        raise ValueError(f"{path} names no hosts")
    return hosts


def read_network_config(path: str) -> list[str]:
    """Return the hosts of a file that `dragon-network-config` wrote, YAML or JSON, the primary first."""
    data = Path(path).read_bytes()
    try:
        content: object = msgspec.json.decode(data) if path.endswith(".json") else msgspec.yaml.decode(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is neither YAML nor JSON: {error}") from error
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path} has no nodes; `dragon-network-config` shows what it should look like")
    nodes = sorted(content.items(), key=lambda item: (not _value(path, item[1], "is_primary"), _number(path, item[0])))
    return unique(str(_value(path, node, "host_name") or _value(path, node, "name")) for _, node in nodes)


def _number(path: str, key: object) -> int:
    try:
        return int(str(key))
    except ValueError:
        raise ValueError(f"{path}: the keys must be numbers of nodes, not {key!r}") from None


def _value(path: str, node: object, name: str) -> object:
    if not isinstance(node, dict) or not (node.get("host_name") or node.get("name")):
        raise ValueError(f"{path}: a node must have a host_name, and {node!r} has none")
    return node.get(name)


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
