"""The kinds of GPUs of a live run: their names, and which jobs may use which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchloader.inputs.job import Devices, Job
from torchloader.inputs.workload import read
from torchloader.service.messages import Joined
from torchloader.service.placing import LackingError, devices_of, kind_named, model, nodes_of, spec_of
from torchloader.service.settings import Settings

GPUS = {"a": "Tesla V100-SXM2-16GB", "b": "Tesla K80", "c": "Tesla V100-PCIE-32GB"}
NODES = {name: Joined(name, "", "10.0.0.1", 8, (0, 1), 0, {}, (), gpu) for name, gpu in GPUS.items()}
CUDA = Settings(".", 0.0, device="cuda")


def job(devices: Devices, **speeds: float) -> Job:
    return Job("job", 24, 12, "out", devices, script="train.py", speeds=speeds)


def placed(wanted: Job, kinds: tuple[str, ...] = ("v100", "k80")) -> Any:
    return devices_of(wanted, nodes_of(NODES, CUDA, 0, lambda name: 0, kinds), CUDA)


@pytest.mark.parametrize(
    ("gpu", "kinds", "found"),
    [
        ("Tesla V100-SXM2-16GB", ("k80", "v100"), "v100"),
        ("NVIDIA A100-SXM4-40GB", ("a10", "a100"), "a100"),
        ("NVIDIA GeForce RTX 3090", ("rtx 3090",), "rtx 3090"),
        ("NVIDIA A10", ("a100",), "NVIDIA A10"),
        ("NVIDIA A10", (), ""),
        ("", ("a100",), ""),
    ],
)
def test_a_kind_is_a_word_of_the_name_of_the_gpu(gpu: str, kinds: tuple[str, ...], found: str) -> None:
    assert kind_named(gpu, kinds) == found


@pytest.mark.parametrize(
    ("models", "found"), [(["Tesla V100", "Tesla V100"], "Tesla V100"), (["Tesla V100", "Tesla K80"], ""), ([], "")]
)
def test_the_name_of_the_gpus_is_that_of_the_driver(models: list[str], found: str, tmp_path: Path) -> None:
    for number, name in enumerate(models):
        (tmp_path / f"0000:{number}").mkdir()
        (tmp_path / f"0000:{number}" / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t\t 40\n")
    assert model(tmp_path) == found


def test_nodes_have_the_kinds_that_jobs_name() -> None:
    nodes = nodes_of(NODES, CUDA, 0, lambda name: 0, ("v100", "k80"))
    assert {name: node.kind for name, node in nodes.items()} == {"a": "v100", "b": "k80", "c": "v100"}
    assert {node.kind for node in nodes_of(NODES, CUDA, 0, lambda name: 0).values()} == {""}
    cpus = Settings(".", 0.0, device="cpu")
    assert {node.kind for node in nodes_of(NODES, cpus, 0, lambda name: 0, ("v100",)).values()} == {""}


def test_the_devices_that_a_job_wants_have_to_be_of_one_kind_that_it_names() -> None:
    assert placed(job(Devices(anywhere=4), v100=1.0)) == 4
    assert placed(job(Devices(((0,), (1,)), ("a", "c")), v100=1.0)) == {"a": (0,), "c": (1,)}
    assert placed(job(Devices(anywhere=6)), ()) == 6
    with pytest.raises(LackingError, match=r"it needs 3 devices of kind k80; .* b with 2 devices of kind k80"):
        placed(job(Devices(anywhere=3), k80=1.0))
    with pytest.raises(LackingError, match="it needs 6 devices of one kind"):
        placed(job(Devices(anywhere=6)))
    with pytest.raises(LackingError, match="it needs devices of one kind, which is v100 or k80"):
        placed(job(Devices(((0,), (1,)), ("a", "b")), v100=1.0, k80=0.2))


def test_a_job_file_gives_speeds(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text(
        "jobs:\n  - {name: a, script: a.py, batch: 8, speeds: {V100: 1.0, k80: 0.2}}\n"
        "  - {name: b, script: b.py, batch: 8, speeds: {v100: 0}}\n"
    )
    workload = read(tmp_path / "jobs.yaml")
    assert spec_of(workload.jobs[0], 1).speeds == {"v100": 1.0, "k80": 0.2}
    assert [(error.column, error.expected) for error in workload.errors] == [("jobs[1].speeds[...]", "`float` > 0.0")]
