"""Sources that fail, hang or vanish."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace

import pytest

from dragon.agent.telemetry import sampler
from dragon.agent.telemetry.gpus import NvidiaSource
from dragon.agent.telemetry.sampler import Sampler
from dragon.agent.telemetry.seen import Seen
from dragon.agent.telemetry.source import Source
from dragon.infrastructure.gpus import Gpus
from dragon.infrastructure.metrics import Sample
from dragon.runtime.log import runtime_log

NOTHING = Seen()


@pytest.fixture
def told() -> Iterator[list[str]]:
    """What the log of telemetry says."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = runtime_log("telemetry")
    log.addHandler(handler)
    yield lines
    log.removeHandler(handler)


class Well:
    name = "one that is well"

    def read(self, seen: Seen) -> list[Sample]:
        return [Sample("load_average", 1.0)]


class Failing:
    name = "one that fails"

    def read(self, seen: Seen) -> list[Sample]:
        raise OSError("no such device")


class Hanging:
    name = "one that hangs"

    def __init__(self) -> None:
        self.calls = 0
        self.end = threading.Event()

    def read(self, seen: Seen) -> list[Sample]:
        self.calls += 1
        self.end.wait(60)
        return []


def sample_until(sources: list[Source], holds: Callable[[list[Sample]], bool]) -> None:
    """Sample every few milliseconds until what came satisfies a condition."""

    async def run() -> None:
        stored: list[Sample] = []
        samples = Sampler(sources, 0.005, lambda: NOTHING, stored.extend)
        try:
            async with asyncio.timeout(30):
                while not holds(stored):
                    await asyncio.sleep(0.005)
        finally:
            samples.close()

    asyncio.run(run())


def test_a_source_that_fails_is_told_once_and_others_go_on(told: list[str]) -> None:
    sample_until([Failing(), Well()], lambda stored: len(stored) > 10)
    assert told == ["one that fails cannot be measured: OSError('no such device')"]


def test_a_source_that_hangs_is_told_once_and_not_asked_again(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_PATIENCE", 0.02)
    hanging = Hanging()
    sample_until([hanging, Well()], lambda stored: len(stored) > 10 and bool(told))
    hanging.end.set()
    assert hanging.calls == 1
    assert [line.split(" for ")[0] for line in told] == ["one that hangs have not been measured"]


class FakeDriver(ModuleType):
    """A driver of two GPUs, of which the first one is divided and does not tell its utilization."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("fake_driver")
        self.gone: set[str] = set()
        self.works = True

    def nvmlInit(self) -> None:
        if not self.works:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index > 1:
            raise self.NVMLError("Invalid Argument")
        return f"gpu {index}"

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:
        return {"GPU-a": "gpu 0", "GPU-b": "gpu 1"}[name]

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        self.look(handle)
        if handle == "gpu 0":
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=42)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        self.look(handle)
        return SimpleNamespace(used=20 * 2**30, total=80 * 2**30)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        self.look(handle)
        return 250_500

    def look(self, handle: str) -> None:
        if handle in self.gone:
            raise self.NVMLError("GPU is lost")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setitem(sys.modules, "fake_driver", fake)
    return fake


def readings(source: NvidiaSource) -> dict[tuple[str, str], float]:
    return {(sample.name, dict(sample.tags)["gpu"]): sample.value for sample in source.read(NOTHING)}


@pytest.mark.usefixtures("driver")
def test_each_gpu_tells_what_it_can(told: list[str]) -> None:
    source = NvidiaSource(Gpus("nvidia", [0, 1]), "fake_driver")
    for _ in range(2):
        assert readings(source) == {
            ("DeviceMemoryUtilization", "0"): 25,
            ("DevicePowerUsage", "0"): 250.5,
            ("DeviceUtilization", "1"): 42,
            ("DeviceMemoryUtilization", "1"): 25,
            ("DevicePowerUsage", "1"): 250.5,
        }
    assert told == ["GPU 0 does not tell DeviceUtilization: Not Supported"]


@pytest.mark.usefixtures("driver")
def test_only_the_jobs_gpus_are_measured() -> None:
    source = NvidiaSource(Gpus("nvidia", [1], ["GPU-b"]), "fake_driver")
    assert {gpu for _, gpu in readings(source)} == {"1"}


def test_a_gpu_that_vanishes_is_told_once_and_the_other_measured_on(driver: FakeDriver, told: list[str]) -> None:
    source = NvidiaSource(Gpus("nvidia", [0, 1]), "fake_driver")
    readings(source)
    told.clear()
    driver.gone.add("gpu 1")
    for _ in range(2):
        assert {gpu for _, gpu in readings(source)} == {"0"}
    assert len(told) == 3
    assert all("GPU 1 does not tell" in line and "GPU is lost" in line for line in told)


@pytest.mark.usefixtures("driver")
def test_a_gpu_that_is_not_there_is_told_and_the_others_measured(told: list[str]) -> None:
    source = NvidiaSource(Gpus("nvidia", [1, 2]), "fake_driver")
    assert {gpu for _, gpu in readings(source)} == {"1"}
    assert told == ["GPU 2 does not tell anything: Invalid Argument"]


def test_a_driver_that_does_not_work_is_told_once(driver: FakeDriver, told: list[str]) -> None:
    driver.works = False
    source = NvidiaSource(Gpus("nvidia", [0]), "fake_driver")
    assert [source.read(NOTHING) for _ in range(3)] == [[]] * 3
    assert told == ["the GPUs are not measured: the driver says Driver Not Loaded"]


def test_a_library_that_is_not_installed_is_told_once_with_the_remedy(told: list[str]) -> None:
    source = NvidiaSource(Gpus("nvidia", [0]), "no_such_driver")
    assert [source.read(NOTHING) for _ in range(3)] == [[]] * 3
    assert len(told) == 1
    assert told[0].endswith("pip install 'dragon-runtime[gpu]'")
