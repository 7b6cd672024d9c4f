"""The metrics of GPUs as dragonhpc's functions return them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from measured import install_plug_in
from test_gpus import OF_EACH, FakeDriver

from dragon.infrastructure.gpu_desc import AccVendor
from dragon.infrastructure.gpus import Gpus
from dragon.telemetry import collector


@pytest.fixture(autouse=True)
def closed_drivers() -> Iterator[None]:
    """Let each test open the drivers anew."""
    yield
    collector._opened.cache_clear()
    collector._handle.cache_clear()


def use(monkeypatch: pytest.MonkeyPatch, gpus: Gpus) -> None:
    """Give this process those GPUs."""
    monkeypatch.setattr(collector, "find_gpus", lambda: gpus)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (Gpus(), (None, 0)),
        (Gpus("nvidia", []), (None, 0)),
        (Gpus("nvidia", [0, 1]), (AccVendor.NVIDIA, 2)),
        (Gpus("amd", [0, 3]), (AccVendor.AMD, [0, 1])),
        (Gpus("intel", [0, 0.1]), (AccVendor.INTEL, 2)),
    ],
)
def test_the_vendor_and_number_of_gpus_are_returned(
    monkeypatch: pytest.MonkeyPatch, gpus: Gpus, expected: tuple[AccVendor | None, object]
) -> None:
    use(monkeypatch, gpus)
    assert collector.identify_gpu() == expected


def test_each_metric_that_a_gpu_reports_has_a_name_and_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeDriver())
    use(monkeypatch, Gpus("nvidia", [0, 1]))
    found = collector.get_nvidia_metrics(1, telemetry_level=3)
    assert {each["metric"]: each["value"] for each in found} == {**OF_EACH, "DeviceUtilization": 42}
    assert "DeviceUtilization" not in [each["metric"] for each in collector.get_nvidia_metrics(0)]
    assert collector.get_nvidia_metrics(1, telemetry_level=2) == []


def test_a_gpu_that_reports_nothing_is_an_error_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    use(monkeypatch, Gpus("nvidia", [0, 1, 2]))
    driver.gone.add("gpu 1")
    with pytest.raises(RuntimeError, match="no metric of GPU 1: GPU is lost"):
        collector.get_nvidia_metrics(1)
    with pytest.raises(RuntimeError, match="GPU 2: Invalid Argument"):
        collector.get_nvidia_metrics(2)
    with pytest.raises(LookupError, match="no GPU 3"):
        collector.get_nvidia_metrics(3)
    with pytest.raises(LookupError, match="no AMD GPU"):
        collector.get_amd_metrics(0)


def test_without_the_vendors_plug_in_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Gpus("amd", [0]))
    with pytest.raises(ImportError, match="no plug-in measures GPUs of amd; pip install dragon-runtime-gpus"):
        collector.get_amd_metrics(0)


def test_without_the_vendors_package_the_error_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_plug_in(monkeypatch, tmp_path)
    monkeypatch.setitem(sys.modules, "pyzes", None)
    use(monkeypatch, Gpus("intel", [0]))
    with pytest.raises(ImportError, match="Level Zero loader"):
        collector.get_intel_metrics()
