"""The manifest for Kubernetes, and pods as an Indexed Job would start them."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import Site
from dragon.cli import k8s
from dragon.infrastructure.membership import Token
from dragon.launcher.base import Identity, LaunchError
from dragon.launcher.choice import Wanted, choose
from peers.pods import expanded

HERE = Path(__file__).parent


def documents(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, Any]]:
    assert k8s.main(["--image", "registry/image:1", "--nodes", "3", *words]) == 0
    return {document["kind"]: document for document in yaml.safe_load_all(capsys.readouterr().out)}


def test_the_manifest_is_an_indexed_job_with_its_service_and_secret(capsys: pytest.CaptureFixture[str]) -> None:
    found = documents(capsys, "--name", "sweep", "--gpus", "4", "--memory", "64Gi", "train.py", "--epochs", "3")
    job = found["Job"]["spec"]
    assert (job["completionMode"], job["completions"], job["parallelism"], job["backoffLimit"]) == ("Indexed", 3, 3, 0)
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    # Pods have names in DNS only if their subdomain is the name of a headless service that selects them.
    service = found["Service"]
    assert pod["subdomain"] == service["metadata"]["name"] == "sweep"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= job["template"]["metadata"]["labels"].items()
    (container,) = pod["containers"]
    assert container["command"][-3:] == ["train.py", "--epochs", "3"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4", "memory": "64Gi"}
    references = [v["valueFrom"]["secretKeyRef"] for v in container["env"] if "valueFrom" in v]
    assert {reference["key"] for reference in references} == set(found["Secret"]["stringData"])
    assert {reference["name"] for reference in references} == {found["Secret"]["metadata"]["name"]}


def test_arguments_reach_the_program_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["prog.py", "$(DRAGON_JOIN)", "$HOME", "$$(x)", "a$", "$$$", "$()", "costs 3$ (or 4)"]
    (container,) = documents(capsys, *words)["Job"]["spec"]["template"]["spec"]["containers"]
    variables = {"DRAGON_JOIN": "secret"}
    assert [expanded(word, variables) for word in container["command"][-len(words) :]] == words


def test_each_manifest_has_a_different_secret_in_its_secret_object_only(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (documents(capsys, "prog.py") for _ in range(2))
    given = first["Secret"]["stringData"]
    assert given != second["Secret"]["stringData"]
    assert given["join"] not in yaml.safe_dump([first["Job"], first["Service"]])
    token, identity = Token.decode(given["join"]), Identity.decode(given["front-end"])
    assert token.secret == identity.secret
    assert token.addresses == ["dragon-0.dragon:7575"]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--name", "Upper", "x"],
        ["--name", "a" * 60, "x"],
        ["--nodes", "0", "x"],
        ["--cpus", "-1", "x"],
        ["--gpus", "-1", "x"],
        ["--memory", "64GB", "x"],
    ],
)
def test_invalid_options_of_a_manifest_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        k8s.main(["--image", "i", "--nodes", "1", *words])


def test_the_launcher_refuses_to_run_outside_a_pod() -> None:
    with pytest.raises(LaunchError, match="this is not a pod of a Job that `dragon k8s manifest` wrote"):
        choose(Wanted(wlm="k8s"), {})


def test_the_pods_of_a_job_form_a_run(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
    found = documents(capsys, "--name", "sweep", "--port", str(port), "prog.py")
    secret = found["Secret"]["stringData"]
    token = Token.decode(secret["join"])
    token.addresses = [f"127.0.0.1:{port}"]  # there is no DNS of a cluster here
    (container,) = found["Job"]["spec"]["template"]["spec"]["containers"]
    variables = {v["name"]: v["value"] for v in container["env"] if "value" in v}
    variables |= {"DRAGON_JOIN": token.encode(), "DRAGON_FRONT_END": secret["front-end"]}
    agent = [sys.executable, HERE / "stand_in.py", "--join", "environment", "--index-from", "JOB_COMPLETION_INDEX"]
    others = [site.start(*agent, env={**variables, "JOB_COMPLETION_INDEX": str(index)}) for index in (1, 2)]
    wanted = json.dumps({"wlm": "k8s"})
    command = ["sh", "-c", "echo $INDEX $DRAGON_JOIN $DRAGON_FRONT_END"]
    front_end = [sys.executable, HERE / "over.py", wanted, "{}", *command]
    done = site.run(*front_end, env={**variables, "JOB_COMPLETION_INDEX": "0"})
    assert done.stdout == "0\ncode 0\n", done.stderr
    for other in others:
        out, err = other.communicate(timeout=30)
        assert (other.returncode, out) == (0, ""), err
