"""Telemetry of the run at a high level and its log, for tests that run in the head process."""

from __future__ import annotations

import logging
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dragon.agent.telemetry.gpu_source import GpuSource
from dragon.agent.telemetry.seen import Seen
from dragon.runtime.log import runtime_log
from dragon.telemetry import AnalysisClient, Telemetry

if TYPE_CHECKING:
    import pytest

__all__ = ["Values", "gpu_readings", "install_plug_in", "logged", "measuring", "newest", "wait_until"]

Values = dict[str, float]


@contextmanager
def measuring() -> Iterator[None]:
    """Measure everything, twenty times a second."""
    telemetry = Telemetry(telem_cfg={"collector_rate": 0.05})
    telemetry.start(4)
    yield
    telemetry.shutdown()


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect the log messages of telemetry during the block."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = runtime_log("telemetry")
    log.addHandler(handler)
    yield lines
    log.removeHandler(handler)


def gpu_readings(source: GpuSource) -> dict[tuple[str, str], float]:
    """Return the readings of the GPUs that `source` has, by metric and GPU."""
    return {(sample.name, dict(sample.tags)["gpu"]): sample.value for sample in source.read(Seen())}


def newest(*metrics: str, **tags: object) -> Values:
    """Return the newest value of each metric with these tags; if several series have them, their sum."""
    wanted = {name: str(value) for name, value in tags.items()}
    values: Values = {}
    for record in AnalysisClient().get_data(metrics, tags=wanted, interval=0):
        values[record["metric"]] = values.get(record["metric"], 0) + list(record["dps"].values())[-1]
    return values


def wait_until(holds: Callable[[Values], bool], *metrics: str, **tags: object) -> None:
    """Wait until all of these metrics have values that satisfy the condition."""
    end = time.monotonic() + 30
    while True:
        values = newest(*metrics, **tags)
        if set(metrics) <= set(values) and holds(values):
            return
        assert time.monotonic() < end, values
        time.sleep(0.02)


def install_plug_in(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the entry points of plugins/gpus be found, as if it were installed."""
    project = tomllib.loads((Path(__file__).parents[2] / "plugins" / "gpus" / "pyproject.toml").read_text())["project"]
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (folder / "dragon_gpus.dist-info").mkdir()
    (folder / "dragon_gpus.dist-info" / "entry_points.txt").write_text("".join(lines))
    named = f"Name: {project['name']}\nVersion: {project['version']}\n"
    (folder / "dragon_gpus.dist-info" / "METADATA").write_text(named)
    monkeypatch.syspath_prepend(folder)
