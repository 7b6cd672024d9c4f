"""The manifest against the schema that Kubernetes publishes, and the pods that it describes."""

from __future__ import annotations

import signal

import pytest

from conftest import Site
from peers import await_that, hear, hear_error, needs_agent
from peers.pods import Pods, manifest

OPTIONS = ["--namespace", "lab", "--port", "9000", "--cpus", "8", "--gpus", "4", "--memory", "64Gi"]


@pytest.mark.parametrize("options", [[], OPTIONS], ids=["plain", "with options"])
@pytest.mark.parametrize("version", ["1.27", "1.33"])
def test_the_manifest_is_valid(version: str, options: list[str]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="not installed: kubernetes-validate (extra [peers])")
    for document in manifest(*options, "train.py", "--epochs", "3"):
        assert validator.validate(document, version, strict=True) == version


def test_unknown_fields_are_found_by_the_schema() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="not installed: kubernetes-validate (extra [peers])")
    job = next(document for document in manifest("train.py") if document["kind"] == "Job")
    job["spec"]["completion"] = 3
    with pytest.raises(validator.ValidationError, match="'completion' was unexpected"):
        validator.validate(job, "1.33", strict=True)


@needs_agent
def test_the_loss_of_a_pod_is_reported(site: Site, pods: Pods) -> None:
    process = pods.start(site, "sh", "-c", "echo ready; exec sleep 600")
    assert hear(site, process) == ["ready"]
    with pods.lan.cut("sweep-2"):
        assert hear_error(site, process, "node 2 (sweep-2) is lost") < 10
        await_that(lambda: site.kill("sleep"), "the program that the shell becomes")
        process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGKILL
