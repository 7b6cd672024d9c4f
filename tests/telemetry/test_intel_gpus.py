"""Intel's GPUs with the real bindings and a substitute for the library: two cards with two tiles, one without tiles."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from measured import gpu_readings, install_plug_in, logged

from dragon.agent.processes.registry import Known
from dragon.agent.telemetry.gpu_source import GpuSource, gpu_source
from dragon.agent.telemetry.seen import Seen
from dragon.infrastructure import gpus
from dragon.infrastructure.gpus import Gpus
from dragon_gpus.intel import IntelDriver

GIB = 2**30
SECOND = 1_000_000


@pytest.fixture(scope="session")
def loader_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the library, for LD_LIBRARY_PATH."""
    folder = tmp_path_factory.mktemp("level_zero")
    source, soname = Path(__file__).with_name("level_zero.c"), "libze_loader.so.1"
    options = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{soname}"]
    subprocess.run(["cc", *options, "-o", folder / soname, source], check=True)
    return folder


@pytest.fixture
def level_zero(loader_folder: Path) -> Iterator[ctypes.CDLL]:
    """The loaded library, which the linker then finds by its name. Its fake_ functions are for the tests."""
    library = ctypes.CDLL(str(loader_folder / "libze_loader.so.1"))
    library.fake_pass.argtypes = [ctypes.c_uint64]
    library.fake_reset()
    sys.modules.pop("pyzes", None)
    yield library
    sys.modules.pop("pyzes", None)  # nothing else is to find these devices


@pytest.fixture
def told() -> Iterator[list[str]]:
    with logged() as lines:
        yield lines


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        monkeypatch.delenv(name, raising=False)


def of_gpu(number: str, found: dict[tuple[str, str], float]) -> dict[str, float]:
    return {metric: value for (metric, gpu), value in found.items() if gpu == number}


def after_a_second(source: GpuSource, library: ctypes.CDLL) -> dict[tuple[str, str], float]:
    """Return the second of two readings, since shares of time require two."""
    gpu_readings(source)
    library.fake_pass(SECOND)
    return gpu_readings(source)


def test_the_values_of_a_tile_are_read(level_zero: ctypes.CDLL, told: list[str]) -> None:
    found = after_a_second(GpuSource(Gpus("intel", [0, 1]), IntelDriver()), level_zero)
    assert of_gpu("0", found) == {
        "DeviceUtilization": 10,
        "DeviceMemoryUtilization": 25,
        "DeviceMemoryUsed": 16 * GIB,
        "DevicePowerUsage": 110,
        "DeviceTemperature": 41,
        "DeviceClock": 1600,
        "DeviceMemoryClock": 3200,
    }
    assert of_gpu("1", found)["DeviceMemoryUsed"] == 32 * GIB
    assert told == []


def test_a_card_that_is_one_device_has_the_values_of_all_its_tiles(
    level_zero: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE")
    found = after_a_second(GpuSource(Gpus("intel", [0, 1]), IntelDriver()), level_zero)
    assert of_gpu("0", found) == {
        "DeviceUtilization": 20,
        "DeviceMemoryUtilization": 37.5,
        "DeviceMemoryUsed": 48 * GIB,
        "DevicePowerUsage": 350,  # of the card itself
        "DeviceTemperature": 42,
        "DeviceClock": 1600,
        "DeviceMemoryClock": 3200,
    }
    assert of_gpu("1", found)["DevicePowerUsage"] == 130 + 140


def test_values_that_a_card_does_not_report_are_left_out_or_derived(level_zero: ctypes.CDLL, told: list[str]) -> None:
    source = GpuSource(Gpus("intel", [4]), IntelDriver())
    assert of_gpu("4", after_a_second(source, level_zero)) == {
        "DeviceUtilization": 50,  # the busier engine of those that compute
        "DeviceMemoryUtilization": 25,
        "DeviceMemoryUsed": 16 * GIB,  # without the memory of the host
        "DevicePowerUsage": 75,
        "DeviceTemperature": 45,
        "DeviceClock": 2050,
    }
    assert told == ["GPU 4 does not tell DeviceMemoryClock: it has no value for that"]


@pytest.mark.parametrize(
    ("hierarchy", "mask", "temperatures"),
    [
        ("FLAT", None, {"0": 41, "1": 42, "2": 43, "3": 44, "4": 45}),
        ("COMBINED", "2,4", {"2": 43, "4": 45}),
        ("COMPOSITE", None, {"0": 42, "1": 44, "2": 45}),
        ("COMPOSITE", "1", {"1": 44}),
        ("COMPOSITE", "1.0,0.1,2.0", {"1.0": 43, "0.1": 42, "2.0": 45}),
    ],
)
@pytest.mark.usefixtures("level_zero")
def test_gpus_have_the_numbers_that_programs_use(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    hierarchy: str,
    mask: str | None,
    temperatures: dict[str, float],
) -> None:
    install_plug_in(monkeypatch, tmp_path)
    monkeypatch.setattr(gpus, "_nvidia", lambda: [])
    monkeypatch.setattr(gpus, "_amd", lambda: [])
    monkeypatch.setattr(gpus, "_intel", lambda: [""] * (3 if hierarchy == "COMPOSITE" else 5))
    monkeypatch.setenv("ZE_FLAT_DEVICE_HIERARCHY", hierarchy)
    if mask is not None:
        monkeypatch.setenv("ZE_AFFINITY_MASK", mask)
    source = gpu_source(level=3)
    assert source is not None
    found = gpu_readings(source)
    assert {gpu: value for (metric, gpu), value in found.items() if metric == "DeviceTemperature"} == temperatures


def test_shares_of_time_are_available_from_the_second_reading_on(level_zero: ctypes.CDLL, told: list[str]) -> None:
    source = GpuSource(Gpus("intel", [2]), IntelDriver())
    assert not {"DeviceUtilization", "DevicePowerUsage"} & of_gpu("2", gpu_readings(source)).keys()
    for _ in range(2):
        level_zero.fake_pass(SECOND // 2)
        assert of_gpu("2", gpu_readings(source))["DevicePowerUsage"] == 130
    level_zero.fake_restart_counters()
    assert "DevicePowerUsage" not in of_gpu("2", gpu_readings(source))
    level_zero.fake_pass(SECOND)
    assert of_gpu("2", gpu_readings(source))["DevicePowerUsage"] == 130
    assert told == []


def test_engines_that_the_user_cannot_see_are_reported_once(level_zero: ctypes.CDLL, told: list[str]) -> None:
    level_zero.fake_hide_engines()
    source = GpuSource(Gpus("intel", [0]), IntelDriver())
    for _ in range(2):
        found = of_gpu("0", after_a_second(source, level_zero))
        assert "DeviceUtilization" not in found
        assert found["DevicePowerUsage"] == 110
    assert told == ["GPU 0 does not tell DeviceUtilization: the driver shows this user nothing that would tell"]


def test_the_memory_on_a_card_of_the_processes_of_the_run_is_read(level_zero: ctypes.CDLL, told: list[str]) -> None:
    level_zero.fake_run(16, 17)
    source = GpuSource(Gpus("intel", [3, 4]), IntelDriver(), with_processes=True)
    processes = [Known(puid, pid, "trainer", parent=0, group=0, record=(0, 0, 0)) for puid, pid in ((1, 17), (2, 18))]
    samples = source.read(Seen(processes=processes))
    assert [(dict(sample.tags), sample.value) for sample in samples if sample.name == "process_gpu_memory"] == [
        ({"gpu": "4", "name": "trainer", "puid": "1"}, 2 * GIB)
    ]
    assert "GPU 3 does not tell its processes: the driver tells them of whole cards only" in told


def test_a_gpu_that_is_lost_is_reported_once_and_the_others_still_measured(
    level_zero: ctypes.CDLL, told: list[str]
) -> None:
    source = GpuSource(Gpus("intel", [0, 4]), IntelDriver(), with_processes=True)
    gpu_readings(source)
    told.clear()
    level_zero.fake_lose(2)
    for _ in range(2):
        assert {gpu for _, gpu in after_a_second(source, level_zero)} == {"0"}
    assert told == [
        "GPU 4 does not tell DeviceUtilization, DeviceMemoryUtilization, DeviceMemoryUsed, DevicePowerUsage, "
        "DeviceTemperature, DeviceClock, its processes: ZE_RESULT_ERROR_DEVICE_LOST"
    ]


@pytest.mark.usefixtures("level_zero")
@pytest.mark.parametrize(("number", "there"), [(5, 5), (3.0, 3), (1.2, 2)])
def test_a_missing_gpu_is_reported_and_the_others_are_measured(told: list[str], number: float, there: int) -> None:
    source = GpuSource(Gpus("intel", [0, number]), IntelDriver())
    assert {gpu for _, gpu in gpu_readings(source)} == {"0"}
    assert told == [f"GPU {number} does not tell anything: the driver has {there} devices"]


def test_a_driver_that_does_not_work_is_reported_once(level_zero: ctypes.CDLL, told: list[str]) -> None:
    level_zero.fake_unload()
    source = GpuSource(Gpus("intel", [0]), IntelDriver())
    assert [source.read(Seen()) for _ in range(3)] == [[]] * 3
    assert told == ["the GPUs are not measured: the driver says ZE_RESULT_ERROR_UNINITIALIZED"]


def test_missing_bindings_are_reported_once_with_the_command_that_installs_them(told: list[str]) -> None:
    source = GpuSource(Gpus("intel", [0]), IntelDriver("no_such_bindings"))
    assert [source.read(Seen()) for _ in range(3)] == [[]] * 3
    assert len(told) == 1
    assert "pip install 'dragon-runtime-gpus'" in told[0]


# What the linker finds is settled as a process begins, so these have one of their own.
PROGRAM = """
from measured import gpu_readings
from dragon.agent.telemetry.gpu_source import GpuSource
from dragon_gpus.intel import IntelDriver
from dragon.infrastructure.gpus import Gpus
source = GpuSource(Gpus("intel", [0]), IntelDriver())
gpu_readings(source)
print(gpu_readings(source).get(("DeviceTemperature", "0")))
"""


def with_loader_in(folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60, check=True
    )


def test_the_library_is_found_in_the_path_of_the_linker(loader_folder: Path) -> None:
    assert with_loader_in(loader_folder).stdout == "41.0\n"


def test_a_library_that_cannot_be_loaded_is_reported_once_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "libze_loader.so.1").write_bytes(b"")
    ended = with_loader_in(tmp_path)
    assert ended.stdout == "None\n"
    (line,) = [line for line in ended.stderr.splitlines() if "libze_loader.so.1" in line]
    assert "the GPUs are not measured: " in line
    assert line.endswith("install Intel's Level Zero loader")
