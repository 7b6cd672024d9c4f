"""The pods of an Indexed Job as Kubernetes would start them: from the manifest, with names that DNS resolves."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import Site
from peers import dragon, nothing_left
from peers.lan import RUNTIME, Lan, permitted

__all__ = ["Pods", "manifest", "pods", "running_pods"]

JOB = "sweep"


def manifest(*words: str | Path) -> list[dict[str, Any]]:
    """Return what `dragon k8s manifest` prints for a Job of three pods."""
    options = ["--name", JOB, "--image", "registry.example/image:1", "--nodes", "3"]
    command = dragon("k8s", "manifest", *options, *words)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


class Pods:
    """Hosts that act as the pods of one Job after the other."""

    nodes = (f"{JOB}-0", f"{JOB}-1", f"{JOB}-2")

    def __init__(self, lan: Lan) -> None:
        self.lan = lan
        self._others: list[subprocess.Popen[str]] = []

    def start(self, site: Site, *words: str | Path) -> subprocess.Popen[str]:
        self._await_others()
        kinds = {document["kind"]: document for document in manifest(*words)}
        (container,) = kinds["Job"]["spec"]["template"]["spec"]["containers"]
        variables = {entry["name"]: value_of(entry, kinds["Secret"]) for entry in container["env"]}
        command = [sys.executable, "-m", *(expanded(word, variables) for word in container["command"])]
        started = []
        for index in (2, 1, 0):  # agents start before the front end, and have to wait for it
            own = {**variables, "JOB_COMPLETION_INDEX": str(index), "XDG_RUNTIME_DIR": RUNTIME}
            inside = self.lan.at(self.nodes[index], "env", f"--chdir={site.folder}", *command)
            started.append(site.start(*inside, env=own))
        *self._others, first = started
        return first

    def leftovers(self) -> list[str]:
        self._await_others()
        return self.lan.leftovers()

    def _await_others(self) -> None:
        others, self._others = self._others, []
        for other in others:
            print(*other.communicate(timeout=30), file=sys.stderr)  # shown if a test fails


def expanded(word: str, variables: dict[str, str]) -> str:
    """Expand an argument as Kubernetes does: $(NAME) is the value of a variable if it exists, $$ is a dollar sign."""

    def put(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^()]*)\)", put, word)


def value_of(entry: dict[str, Any], secret: dict[str, Any]) -> str:
    """Return the value of a variable in a container."""
    if "value" in entry:
        return str(entry["value"])
    reference = entry["valueFrom"]["secretKeyRef"]
    assert reference["name"] == secret["metadata"]["name"]
    return str(secret["stringData"][reference["key"]])


@pytest.fixture(scope="session")
def running_pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    """Start three pods for the session."""
    permitted()
    # A pod's name in DNS is its host name in the domain of the Job's Service.
    with Lan(tmp_path_factory.mktemp("pods"), Pods.nodes, domain=JOB) as lan:
        yield Pods(lan)


@pytest.fixture
def pods(running_pods: Pods) -> Iterator[Pods]:
    """Provide the pods to a test, with nothing on them."""
    with nothing_left(running_pods):
        yield running_pods
