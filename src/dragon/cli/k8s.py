"""`dragon k8s manifest`: prints the Kubernetes objects that run a program over the pods of a Job."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from dragon.cli import machine
from dragon.commands import Parser
from dragon.launcher.k8s import manifest

_MEMORY = re.compile(r"\d+(\.\d+)?([kMGTPE]|[KMGTPE]i)?")
# A pod's host name appends the index, and has at most 63 letters.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?")


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="dragon k8s manifest",
        description="Print a Secret, a headless Service and an Indexed Job that run a program over N pods. They "
        "contain the secret of one run: pipe them to `kubectl apply -f -`, and print new ones for each run.",
        allow_abbrev=False,
    )
    add = result.add_argument
    add("--name", default="dragon", help="the name of the Job (default dragon)")
    add("--image", required=True, help="a container image with Python, dragon and the program")
    add("-N", "--nodes", type=machine.count, required=True, metavar="N", help="the number of pods")
    add("--namespace", default="", help="the namespace of the Job")
    listening = "TCP port at which the first pod listens (default 7575)"
    add("-p", "--port", type=machine.port, default=7575, help=listening)
    add("--cpus", type=machine.count, metavar="N", help="CPUs of each pod")
    add("--gpus", type=machine.count, metavar="N", help="GPUs of each pod")
    add("--memory", default="", metavar="SIZE", help="memory of each pod, such as 64Gi")
    add("command", nargs=argparse.REMAINDER, metavar="...", help="program and arguments, as for `dragon`")
    return result


def main(words: Sequence[str]) -> int:
    arguments = parser().parse_args(words)
    if not arguments.command:
        parser().error("no program given")
    if not _NAME.fullmatch(arguments.name):
        parser().error(f"--name {arguments.name}: lower-case letters, digits and dashes, at most 53, a letter first")
    if arguments.nodes < 1:
        parser().error("--nodes: at least one")
    if arguments.memory and not _MEMORY.fullmatch(arguments.memory):
        parser().error(f"--memory {arguments.memory}: a number and one of Ki, Mi, Gi, Ti or k, M, G, T, such as 64Gi")
    import yaml

    asked = {"cpu": arguments.cpus, "nvidia.com/gpu": arguments.gpus, "memory": arguments.memory}
    limits = {name: str(value) for name, value in asked.items() if value}
    job = arguments.name, arguments.image, arguments.nodes, arguments.command, arguments.port
    documents = manifest(*job, limits, arguments.namespace)
    print(yaml.safe_dump_all(documents, sort_keys=False), end="")
    return 0
