"""Nodes of a Ray cluster: one actor on each runs the agent.

The actors are bundles of a placement group with the strategy STRICT_SPREAD, so no two are on one node, and Ray starts
nothing else on the CPUs and GPUs that they hold.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dragon.infrastructure.membership import Token
from dragon.infrastructure.structs import msgspec
from dragon.launcher.base import Launcher, LaunchError, agent_command

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.util.placement_group import PlacementGroup

_KEPT_LINES = 20
_PLACEMENT_TIMEOUT = 60.0
_ANSWER_TIMEOUT = 5.0


class _Actor:
    """A Ray actor that holds the resources of a node, and runs its agent."""

    def run(self, command: Sequence[str], token: str) -> tuple[int, str]:
        """Run the agent. Returns its exit code, and the last lines of its output."""
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        told, _ = process.communicate(token + "\n")
        return process.returncode, "\n".join(told.splitlines()[-_KEPT_LINES:])


class Ray(Launcher):
    """`count` nodes of the cluster at `address` (as for `ray.init`), or all of them."""

    name = "ray"

    def __init__(self, count: int = 0, address: str = "auto") -> None:
        super().__init__()
        try:
            import ray
        except ImportError as error:
            raise LaunchError("Ray is not installed here: pip install 'dragon-runtime[ray]'") from error
        self.ray = ray
        if not ray.is_initialized():
            if address == "auto":
                address = os.environ.get("RAY_ADDRESS", address)
            try:
                _expect_answer(address)
                ray.init(address=address, log_to_driver=False, logging_level="ERROR", namespace="dragon")
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                raise LaunchError(f"no Ray cluster at {address!r}: {why}; `ray start` makes one") from error
        alive = [node for node in ray.nodes() if node["Alive"]]
        if count > len(alive):
            raise LaunchError(f"{count} nodes were requested; the Ray cluster has {len(alive)}")
        # The resources that every node has; the nodes may differ.
        resources = [node["Resources"] for node in alive]
        bundle = {kind: min(has.get(kind, 0) for has in resources) for kind in ("CPU", "GPU")}
        self.bundle = {kind: amount for kind, amount in bundle.items() if amount} or {"CPU": 1}
        self.nodes = [""] * (count or len(alive))
        self.command = agent_command()
        self._calls: list[Any] = []
        self._group: PlacementGroup | None = None

    async def start(self, token: Token) -> None:
        """Reserve the nodes with a placement group and start an actor on each. Raises LaunchError after a timeout."""
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._group = placement_group([self.bundle] * len(self.nodes), strategy="STRICT_SPREAD")
        try:
            await asyncio.wait_for(_awaited(self._group.ready()), _PLACEMENT_TIMEOUT)
        except TimeoutError:
            raise LaunchError(
                f"Ray did not allocate {len(self.nodes)} nodes with {self.bundle} each within "
                f"{_PLACEMENT_TIMEOUT:g} s: they are in use; `ray status` shows by whom"
            ) from None
        actor = self.ray.remote(_Actor)
        for index in range(len(self.nodes)):
            strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
            options = {"num_cpus": self.bundle.get("CPU", 0), "num_gpus": self.bundle.get("GPU", 0)}
            holder = actor.options(scheduling_strategy=strategy, **options).remote()
            own = msgspec.structs.replace(token, index=index)
            self._calls.append((holder, holder.run.remote(self.command, own.encode())))

    async def failed(self) -> str:
        """Wait until the first actor has ended, and return which and why."""
        waiting = {asyncio.ensure_future(_awaited(call)): index for index, (_, call) in enumerate(self._calls)}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            first = done.pop()
            if error := first.exception():
                return f"Ray's actor {waiting[first]} failed: {error}"
            code, told = first.result()
            return f"the agent of Ray's actor {waiting[first]} ended with code {code}:\n{told}"
        finally:
            for task in waiting:
                task.cancel()

    async def stop(self, patience: float) -> None:
        """Wait up to `patience` seconds for the actors, then kill them, release the nodes and disconnect from Ray."""
        waiting = [asyncio.ensure_future(_awaited(call)) for _, call in self._calls]
        if waiting and patience:
            await asyncio.wait(waiting, timeout=patience)
        for task in waiting:
            task.cancel()
        for holder, _ in self._calls:
            self.ray.kill(holder)
        if self._group is not None:
            self.ray.util.remove_placement_group(self._group)
        self.ray.shutdown()


def _expect_answer(address: str) -> None:
    """Raise OSError if nothing listens at the address: Ray would retry for more than a minute."""
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.port is not None:
        socket.create_connection((place.hostname, place.port), timeout=_ANSWER_TIMEOUT).close()


async def _awaited(reference: ObjectRef) -> Any:
    return await asyncio.wrap_future(reference.future())
