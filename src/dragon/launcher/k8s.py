"""Nodes that are the pods of an Indexed Job of Kubernetes.

All pods run the same command. The pod with index 0 runs the front end, and an agent of its own; the others run agents,
and find the front end by its name in the Job's headless Service. A Secret gives all of them the same identity.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dragon.infrastructure.membership import Token
from dragon.infrastructure.structs import msgspec
from dragon.launcher.base import Identity, Launcher, LaunchError, Starter, agent_command

INDEX = "JOB_COMPLETION_INDEX"  # set by Kubernetes
_IDENTITY, _JOIN = "DRAGON_FRONT_END", "DRAGON_JOIN"
_JOB, _COUNT, _PORT = "DRAGON_JOB", "DRAGON_JOB_NODES", "DRAGON_PORT"
# Seconds: pulling images may take much longer on some machines than on others.
JOIN_TIMEOUT = 600.0


class K8s(Launcher):
    """The pods of the Job that this pod belongs to, which must be its first. Raises LaunchError elsewhere."""

    name = "k8s"

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__()
        missing = [name for name in (INDEX, _IDENTITY, _JOB, _COUNT) if name not in environment]
        if missing:
            raise LaunchError(
                f"this is not a pod of a Job that `dragon k8s manifest` wrote: {', '.join(missing)} is not set"
            )
        self.nodes = [f"{environment[_JOB]}-{index}" for index in range(int(environment[_COUNT]))]
        self.identity = Identity.decode(environment[_IDENTITY])
        self.port = int(environment.get(_PORT, "0"))
        self.command = agent_command()

    async def start(self, token: Token) -> None:
        """Start the agent of the first pod; the agents of the others are their pods' own commands."""
        # The front end's address must not be the loopback: to an agent that means a run on this machine only.
        own = msgspec.structs.replace(token, index=0)
        hidden = {name: value for name, value in os.environ.items() if name not in (_IDENTITY, _JOIN)}
        self.starters.append(await Starter.run("the agent of the first pod", self.command, own.encode(), hidden))


def _literal(word: str) -> str:
    """Escape an argument, because Kubernetes replaces $(NAME) by the variable, including the secret ones, and
    $$ by $."""
    return word.replace("$", "$$")


def manifest(
    name: str, image: str, nodes: int, command: Sequence[str], port: int, limits: dict[str, str], namespace: str = ""
) -> list[dict[str, Any]]:
    """Return a Secret, a headless Service and a Job that run `command`, the arguments of `dragon`, over `nodes` pods.
    `limits` are those of each, in the notation of Kubernetes."""
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
        # Agents connect to the front end before its pod counts as ready.
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
        "resources": {"limits": limits},
    }
    pod = {
        "metadata": {"labels": {"app": name}},
        "spec": {
            "subdomain": name,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [container],
            # Spread over as many machines as possible.
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
