"""Job files: they can describe more than the columns of a workload."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchloader.inputs.job import Devices, InputError, Job, Workload
from torchloader.inputs.workload import read

TOML = """\
[[jobs]]
name = "bert"
script = "train.py"
arguments = ["--lr", 0.1]
dataset = "/data/books"
devices = { hostA = [0, 1], hostB = [0, 1] }
batch = 64
workers = 16
output_folder = "out"
arrival = 2.5
epochs = 3
iterations = 100
weight = 2.0
minimum = 2
maximum = 8
environment = { OMP_NUM_THREADS = 1 }

[[jobs]]
name = "small"
arch = "resnet"
depth = 18
batch = 32
"""
YAML = """\
jobs:
  - {name: a, script: a.py, batch: 8, devices: 2}
  - {name: b, script: b.py, batch: 8, devices: [[0, 1], [0, 1]]}
"""


def write(tmp_path: Path, text: str, name: str = "jobs.toml") -> Workload:
    path = tmp_path / name
    path.write_text(text)
    return read(path)


def test_a_job_can_have_a_script_an_environment_and_bounds(tmp_path: Path) -> None:
    workload = write(tmp_path, TOML)
    assert workload.errors == ()
    assert workload.jobs[0] == Job(
        name="bert",
        script=str(tmp_path / "train.py"),
        arguments=("--lr", "0.1"),
        dataset="/data/books",
        devices=Devices(((0, 1), (0, 1)), ("hostA", "hostB")),
        batch=64,
        workers=16,
        output_folder="out",
        arrival=2.5,
        end_epoch=3,
        end_iter=100,
        weight=2.0,
        minimum=2,
        maximum=8,
        environment={"OMP_NUM_THREADS": "1"},
    )
    assert workload.jobs[0].iterations == 300


def test_missing_columns_have_defaults(tmp_path: Path) -> None:
    job = write(tmp_path, TOML).jobs[1]
    assert (job.devices, job.workers, job.output_folder) == (Devices(anywhere=1), 1, "small")
    assert job.iterations is None


def test_a_job_file_can_be_yaml(tmp_path: Path) -> None:
    workload = write(tmp_path, YAML, "jobs.yaml")
    assert workload.errors == ()
    assert [job.devices for job in workload.jobs] == [Devices(anywhere=2), Devices(((0, 1), (0, 1)))]


@pytest.mark.parametrize(
    ("entry", "column", "expected"),
    [
        ("script: a.py, batch: 8", ".name", "a value, as every job has one"),
        ("name: a/b, script: a.py, batch: 8", ".name", "`str` matching regex"),
        ("name: a, script: a.py, batch: eight", ".batch", "`int`"),
        ("name: a, script: a.py, batch: 0", ".batch", "`int` >= 1"),
        ("name: a, script: a.py, batch: 8, arrival: .inf", ".arrival", "`float` <= 1000000000"),
        ("name: a, script: a.py, batch: 8, weight: .inf", ".weight", "`float` <= 1000000000"),
        ("name: a, script: a.py, batch: 8, bach: 8", ".bach", "one of name, batch, devices"),
        ("name: a, script: a.py, batch: 8, environment: {A: [1]}", ".environment[...]", "`int | float | str`"),
        ("name: a, batch: 8", ".script", "either script or arch and depth"),
        ("name: a, batch: 8, arch: resnet, depth: 11", ".arch", "one of resnet 10"),
        ("name: a, batch: 8, arch: vgg, depth: 11, dataset: 'slow:1'", ".dataset", "images, latency:SECONDS or jpeg"),
        ("name: a, batch: 8, arch: vgg, depth: 11, dataset: 'latency:soon'", ".dataset", "images, latency:SECONDS"),
        ("name: a, script: a.py, batch: 9, devices: 2", ".batch", "a multiple of its 2 devices"),
        ("name: a, script: a.py, batch: 8, devices: 2, workers: 1", ".workers", "at least one for each"),
        ("name: a, script: a.py, batch: 8, devices: [[0, 0]]", ".devices", "every index once"),
        ("name: a, script: a.py, batch: 8, devices: {h: [-1]}", ".devices", "a list of its device indices"),
        ("name: a, script: a.py, batch: 8, minimum: 3, maximum: 2", ".maximum", "at least the minimum, 3"),
        ("name: good, script: a.py, batch: 8", ".name", "a name that no other job has"),
    ],
)
def test_the_error_about_an_invalid_field_has_its_path(tmp_path: Path, entry: str, column: str, expected: str) -> None:
    text = f"jobs:\n  - {{name: good, script: g.py, batch: 1}}\n  - {{{entry}}}\n"
    workload = write(tmp_path, text, "jobs.yml")
    assert [job.name for job in workload.jobs] == ["good"]
    (error,) = workload.errors
    assert error.column == f"jobs[1]{column}"
    assert expected in error.expected
    assert "Expected" not in error.expected


def test_all_errors_of_all_jobs_are_reported_together(tmp_path: Path) -> None:
    jobs = (
        "{name: a/b, batch: 0, bach: 1, devices: 2, workers: 1, minimum: 3, maximum: 2}",
        "{script: a.py, arch: vgg}",
        "nothing",
        "{name: good, script: a.py, batch: 8}",
    )
    workload = write(tmp_path, "jobs:\n" + "".join(f"  - {job}\n" for job in jobs), "jobs.yaml")
    assert [error.column for error in workload.errors] == [
        *(f"jobs[0].{name}" for name in ("bach", "name", "batch", "script", "workers", "maximum")),
        *(f"jobs[1].{name}" for name in ("name", "batch", "script")),
        "jobs[2]",
    ]
    assert str(workload.errors[2]) == f"{tmp_path}/jobs.yaml, jobs[0].batch: found 0, expected `int` >= 1"
    assert [job.name for job in workload.jobs] == ["good"]


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("jobs = [", "jobs.toml", "a TOML file"),
        ("jobs: [", "jobs.yaml", "a YAML file"),
        pytest.param("jobs: " + 5000 * "[", "jobs.yaml", "a YAML file", id="deep YAML"),
        pytest.param("jobs = " + 5000 * "[", "jobs.toml", "a TOML file", id="deep TOML"),
        ("- a", "jobs.yaml", "a list of jobs"),
        ("jobs = 1", "jobs.toml", "a list of jobs"),
        ("jobs: []\njbos: []", "jobs.yaml", "jobs alone"),
    ],
)
def test_an_invalid_job_file_is_an_error(tmp_path: Path, text: str, name: str, expected: str) -> None:
    workload = write(tmp_path, text, name)
    assert [error.expected for error in workload.errors] == [expected]
    assert workload.jobs == ()


def test_a_file_with_another_extension_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'\.txt', expected a file that ends in \.csv, \.toml"):
        write(tmp_path, "", "jobs.txt")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found no such file"):
        read(tmp_path / "nobody")
    with pytest.raises(InputError, match="found a folder, expected"):
        read(tmp_path)
