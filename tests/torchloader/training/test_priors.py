"""Estimates for networks that have never run, from finished runs."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch")

from conftest import Site
from torchloader.inputs.job import Devices, Job
from torchloader.prediction.curve import Curve
from torchloader.prediction.prior import Prior
from torchloader.scheduling.application import Spec, State
from torchloader.scheduling.log import EventLog
from torchloader.service.settings import Settings
from torchloader.training.priors import _features, curves_for, fitted


def job_of(arch: str, depth: int) -> Job:
    return Job(
        f"{arch}{depth}", batch=16, workers=4, output_folder="out", devices=Devices(anywhere=1), arch=arch, depth=depth
    )


def seconds_of(job: Job) -> float:
    """Return the seconds of an iteration on a device with a fixed rate of operations."""
    features = _features(job, 32)
    return features.batch * features.counts.operations / 1e11 + features.counts.parameters / 1e9


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The event log of a run of some networks."""
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for arch, depth in (("resnet", 10), ("resnet", 18), ("resnet", 34), ("vgg", 11), ("vgg", 13), ("googlenet", 1)):
            job = job_of(arch, depth)
            told = {"job": msgspec.json.encode(job).decode()}
            log.records.submit(Spec(job.name, arch, 1, batch=16, iterations=10, settings=told), 0.0)
            log.records.change(job.name, State.STARTING, 1.0, "arrival", workers=4, placement={"vm": (0,)})
            curve = Curve(16 / seconds_of(job), 0.004)
            log.records.change(job.name, State.RUNNING, 2.0, "it was measured", curve=curve)
    return path


def test_the_curve_of_a_new_network_is_estimated_from_finished_runs(log: Path, tmp_path: Path) -> None:
    fitted([(log, 32)]).save(tmp_path / "prior.json")
    prior = Prior.load(tmp_path / "prior.json")
    assert prior.rows == 6
    job = job_of("vgg", 19)
    curve = curves_for([job], prior, 32)[job.name]
    assert curve.ceiling == pytest.approx(16 / seconds_of(job), rel=0.1)
    assert curve.service == pytest.approx(0.004)


def test_a_prior_from_too_few_networks_is_refused(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl"), pytest.raises(ValueError, match="there must be two at least"):
        fitted([(tmp_path / "events.jsonl", 32)])


def test_the_command_writes_a_prior_to_a_file(log: Path, tmp_path: Path, site: Site) -> None:
    Settings(str(tmp_path), 0.0).save()
    done = site.run(sys.executable, "-m", "torchloader", "fit", str(tmp_path), "--out", "prior.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("prior.json: fitted to 6 measurements; on networks left out of the fit it is off by ")
    assert Prior.load(site.folder / "prior.json").rows == 6


def test_the_error_of_the_command_names_a_folder_without_a_run(tmp_path: Path, site: Site) -> None:
    done = site.run(sys.executable, "-m", "torchloader", "fit", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr
