"""Nodes that are the pods of an Indexed Job of Kubernetes.

All pods run the same command. The one with index 0 is the front end, and has an agent of its own beside it; the others
are agents, and find it under its name in the Job's headless Service. A Secret gives all of them the same identity.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragon.infrastructure.membership import Token
from dragon.launcher.base import Launcher, LaunchError, Starter, agent_command
from dragon.launcher.identity import Identity

__all__ = ["INDEX", "JOIN_TIMEOUT", "K8s", "Resources", "manifest"]

INDEX = "JOB_COMPLETION_INDEX"  # set by Kubernetes
_IDENTITY, _JOIN = "DRAGON_FRONT_END", "DRAGON_JOIN"
_JOB, _COUNT, _PORT = "DRAGON_JOB", "DRAGON_JOB_NODES", "DRAGON_PORT"
# Images are pulled to some machines long after others.
JOIN_TIMEOUT = 600.0


class K8s(Launcher):
    """The pods of the Job that this one belongs to, which must be its first. Raises LaunchError elsewhere."""

    name = "k8s"

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__()
        missing = [name for name in (INDEX, _IDENTITY, _JOB, _COUNT) if name not in environment]
        if missing:
            raise LaunchError(
                f"this is no pod of a Job that `dragon k8s manifest` wrote: {', '.join(missing)} is not set"
            )
        self.nodes = [f"{environment[_JOB]}-{index}" for index in range(int(environment[_COUNT]))]
        self.identity = Identity.decode(environment[_IDENTITY])
        self.port = int(environment.get(_PORT, "0"))
        self.command = agent_command()

    async def start(self, token: Token) -> None:
        """Start the agent of the first pod; the agents of the others are their pods' own commands."""
        # It must not be called over the loopback: an agent takes that for a run on this machine alone.
        own = msgspec.structs.replace(token, index=0)
        hidden = {name: value for name, value in os.environ.items() if name not in (_IDENTITY, _JOIN)}
        self.starters.append(await Starter.run("the agent of the first pod", self.command, own.encode(), hidden))


class Resources(msgspec.Struct, kw_only=True):
    """What each pod is to have; `memory` as Kubernetes writes it (64Gi)."""

    cpus: int | None = None
    gpus: int | None = None
    memory: str = ""

    def limits(self) -> dict[str, str]:
        """As a container's limits."""
        found = {"cpu": self.cpus, "nvidia.com/gpu": self.gpus, "memory": self.memory}
        return {name: str(value) for name, value in found.items() if value}


def _literal(word: str) -> str:
    """An argument that a container gets as it is: Kubernetes puts variables, the secret ones too, in place of $(NAME),
    and one dollar in place of two."""
    return word.replace("$", "$$")


def manifest(
    name: str, image: str, nodes: int, command: Sequence[str], port: int, resources: Resources, namespace: str = ""
) -> list[dict[str, Any]]:
    """A Secret, a headless Service and a Job that run `command`, which is the arguments of `dragon`, over `nodes` pods.

    Each call makes a secret of its own; the result is to be used for one run, and not kept.
    """
    identity = Identity.create()
    token = identity.token([f"{name}-0.{name}:{port}"])
    token.claims = {"join_timeout": JOIN_TIMEOUT}
    metadata = {"name": name, "labels": {"app": name}, **({"namespace": namespace} if namespace else {})}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "stringData": {"join": token.encode(), "front-end": identity.encode()},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        # The front end is called before its pod counts as ready.
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": name}},
    }
    variables = [
        {"name": _JOB, "value": name},
        {"name": _COUNT, "value": str(nodes)},
        {"name": _PORT, "value": str(port)},
        {"name": _JOIN, "valueFrom": {"secretKeyRef": {"name": name, "key": "join"}}},
        {"name": _IDENTITY, "valueFrom": {"secretKeyRef": {"name": name, "key": "front-end"}}},
    ]
    container = {
        "name": "dragon",
        "image": image,
        "command": ["dragon", "--wlm", "k8s", f"--join-timeout={JOIN_TIMEOUT:g}", *map(_literal, command)],
        "env": variables,
        "resources": {"limits": resources.limits()},
    }
    pod = {
        "metadata": {"labels": {"app": name}},
        "spec": {
            "subdomain": name,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [container],
            # On as many machines as there are.
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {"app": name}},
                }
            ],
        },
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "completionMode": "Indexed",
            "completions": nodes,
            "parallelism": nodes,
            "backoffLimit": 0,
            "template": pod,
        },
    }
    return [secret, service, job]
