"""GPUs with substitutes for drivers, as no machine for tests has all GPUs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
from measured import gpu_readings, logged

from dragon.agent.processes.registry import Known
from dragon.agent.telemetry.gpu_source import GpuSource, NvidiaDriver
from dragon.agent.telemetry.seen import Seen
from dragon.infrastructure.gpus import Gpus
from dragon_gpus.amd import AmdDriver


@pytest.fixture
def told() -> Iterator[list[str]]:
    with logged() as lines:
        yield lines


class FakeDriver(ModuleType):
    """A driver of two GPUs, of which the first one is divided and does not report its utilization."""

    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_AGGREGATE_ECC = 1

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

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        self.look(handle)
        return 61

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        self.look(handle)
        return {1: 1980, 2: 2619}[clock]

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:
        self.look(handle)
        assert (kind, counter) == (1, 1)
        return 3

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        self.look(handle)
        if handle == "gpu 0":
            return []
        return [SimpleNamespace(pid=17, usedGpuMemory=2**30), SimpleNamespace(pid=18, usedGpuMemory=None)]

    def look(self, handle: str) -> None:
        if handle in self.gone:
            raise self.NVMLError("GPU is lost")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setitem(sys.modules, "fake_driver", fake)
    return fake


OF_EACH = {
    "DeviceMemoryUtilization": 25,
    "DeviceMemoryUsed": 20 * 2**30,
    "DevicePowerUsage": 250.5,
    "DeviceTemperature": 61,
    "DeviceClock": 1980,
    "DeviceMemoryClock": 2619,
    "DeviceECCErrors": 3,
}


@pytest.mark.usefixtures("driver")
def test_the_available_values_of_each_gpu_are_read(told: list[str]) -> None:
    source = GpuSource(Gpus("nvidia", [0, 1]), NvidiaDriver("fake_driver"))
    expected = {(metric, gpu): value for metric, value in OF_EACH.items() for gpu in "01"}
    for _ in range(2):
        assert gpu_readings(source) == {**expected, ("DeviceUtilization", "1"): 42}
    assert told == ["GPU 0 does not tell DeviceUtilization: Not Supported"]


@pytest.mark.usefixtures("driver")
def test_the_gpu_memory_of_the_processes_of_the_run_is_read() -> None:
    source = GpuSource(Gpus("nvidia", [0, 1]), NvidiaDriver("fake_driver"), with_processes=True)
    processes = [Known(puid, pid, "trainer", parent=0, group=0, record=(0, 0, 0)) for puid, pid in ((1, 16), (2, 17))]
    samples = source.read(Seen(processes=processes))
    assert [(dict(sample.tags), sample.value) for sample in samples if sample.name == "process_gpu_memory"] == [
        ({"gpu": "1", "name": "trainer", "puid": "2"}, 2**30)
    ]


@pytest.mark.usefixtures("driver")
def test_only_the_gpus_of_the_job_are_measured() -> None:
    source = GpuSource(Gpus("nvidia", [1], ["GPU-b"]), NvidiaDriver("fake_driver"))
    assert {gpu for _, gpu in gpu_readings(source)} == {"1"}


def test_a_gpu_that_is_lost_is_reported_once_and_the_other_one_still_measured(
    driver: FakeDriver, told: list[str]
) -> None:
    source = GpuSource(Gpus("nvidia", [0, 1]), NvidiaDriver("fake_driver"))
    gpu_readings(source)
    told.clear()
    driver.gone.add("gpu 1")
    for _ in range(2):
        assert {gpu for _, gpu in gpu_readings(source)} == {"0"}
    (line,) = told
    assert line.startswith("GPU 1 does not tell DeviceUtilization, DeviceMemoryUtilization, ")
    assert line.endswith(": GPU is lost")


@pytest.mark.usefixtures("driver")
def test_a_missing_gpu_is_reported_and_the_others_are_measured(told: list[str]) -> None:
    source = GpuSource(Gpus("nvidia", [1, 2]), NvidiaDriver("fake_driver"))
    assert {gpu for _, gpu in gpu_readings(source)} == {"1"}
    assert told == ["GPU 2 does not tell anything: Invalid Argument"]


def test_a_driver_that_does_not_work_is_reported_once(driver: FakeDriver, told: list[str]) -> None:
    driver.works = False
    source = GpuSource(Gpus("nvidia", [0]), NvidiaDriver("fake_driver"))
    assert [source.read(Seen()) for _ in range(3)] == [[]] * 3
    assert told == ["the GPUs are not measured: the driver says Driver Not Loaded"]


def test_a_missing_library_is_reported_once_with_the_command_that_installs_it(told: list[str]) -> None:
    source = GpuSource(Gpus("nvidia", [0]), NvidiaDriver("no_such_driver"))
    assert [source.read(Seen()) for _ in range(3)] == [[]] * 3
    assert len(told) == 1
    assert told[0].endswith("pip install 'dragon-runtime[gpu]'")


class FakeSmi(ModuleType):
    """AMD's library with two GPUs, which it lists in the reverse order of the numbers that programs use."""

    class AmdSmiException(Exception):
        pass

    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")
    AmdSmiClkType = SimpleNamespace(GFX="gfx", MEM="mem")
    AmdSmiMemoryType = SimpleNamespace(VRAM="vram")

    def __init__(self) -> None:
        super().__init__("fake_smi")
        self.gone: set[int] = set()

    def amdsmi_init(self) -> None:
        pass

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [1, 0]

    def amdsmi_get_gpu_kfd_info(self, handle: int) -> dict[str, object]:
        return {"node_id": handle + 2}

    def amdsmi_get_gpu_asic_info(self, handle: int) -> dict[str, object]:
        return {"asic_serial": f"0x{0xABC0 + handle:016X}"}

    def amdsmi_get_gpu_activity(self, handle: int) -> dict[str, object]:
        self.look(handle)
        return {"gfx_activity": (90, 10)[handle], "umc_activity": "N/A"}

    def amdsmi_get_gpu_memory_usage(self, handle: int, kind: str) -> int:
        self.look(handle)
        return 48 * 2**30

    def amdsmi_get_gpu_memory_total(self, handle: int, kind: str) -> int:
        self.look(handle)
        return 192 * 2**30

    def amdsmi_get_power_info(self, handle: int) -> dict[str, object]:
        self.look(handle)
        return {"current_socket_power": ("N/A", 300)[handle], "average_socket_power": (150, "N/A")[handle]}

    def amdsmi_get_temp_metric(self, handle: int, kind: str, metric: str) -> int:
        self.look(handle)
        return 61

    def amdsmi_get_clock_info(self, handle: int, kind: str) -> dict[str, object]:
        self.look(handle)
        return {"clk": {"gfx": 2100, "mem": 1300}[kind]}

    def amdsmi_get_gpu_total_ecc_count(self, handle: int) -> dict[str, object]:
        self.look(handle)
        return {"uncorrectable_count": (3, "N/A")[handle]}

    def amdsmi_get_gpu_process_list(self, handle: int) -> list[dict[str, object]]:
        self.look(handle)
        return [{"pid": 17, "memory_usage": {"vram_mem": 2**30}}]

    def look(self, handle: int) -> None:
        if handle in self.gone:
            raise self.AmdSmiException("Device Not found")


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> FakeSmi:
    fake = FakeSmi()
    monkeypatch.setitem(sys.modules, "fake_smi", fake)
    return fake


@pytest.mark.usefixtures("smi")
def test_amds_gpus_have_the_numbers_that_programs_use(told: list[str]) -> None:
    found = gpu_readings(GpuSource(Gpus("amd", [0, 1]), AmdDriver("fake_smi")))
    of_both = {
        "DeviceMemoryUtilization": 25,
        "DeviceMemoryUsed": 48 * 2**30,
        "DeviceTemperature": 61,
        "DeviceClock": 2100,
        "DeviceMemoryClock": 1300,
    }
    assert found == {
        **{(metric, gpu): value for metric, value in of_both.items() for gpu in "01"},
        ("DeviceUtilization", "0"): 90,
        ("DeviceUtilization", "1"): 10,
        ("DevicePowerUsage", "0"): 150,
        ("DevicePowerUsage", "1"): 300,
        ("DeviceECCErrors", "0"): 3,
    }
    assert told == ["GPU 1 does not tell DeviceECCErrors: it has no value for that"]


@pytest.mark.usefixtures("smi")
def test_amds_gpus_are_found_by_their_names(told: list[str]) -> None:
    source = GpuSource(Gpus("amd", [0, 1], ["GPU-000000000000abc1", "GPU-7"]), AmdDriver("fake_smi"))
    assert gpu_readings(source)["DeviceUtilization", "0"] == 10
    assert "GPU 1 does not tell anything: the driver has no device GPU-7" in told


def test_a_gpu_of_amd_that_is_lost_does_not_affect_the_others(smi: FakeSmi, told: list[str]) -> None:
    source = GpuSource(Gpus("amd", [0, 1]), AmdDriver("fake_smi"), with_processes=True)
    smi.gone.add(0)
    processes = [Known(1, 17, "trainer", parent=0, group=0, record=(0, 0, 0))]
    for _ in range(2):
        samples = source.read(Seen(processes=processes))
        assert {dict(sample.tags)["gpu"] for sample in samples} == {"1"}
    assert [line for line in told if "Device Not found" in line] == [
        "GPU 0 does not tell DeviceUtilization, DeviceMemoryUtilization, DeviceMemoryUsed, DevicePowerUsage, "
        "DeviceTemperature, DeviceClock, DeviceMemoryClock, DeviceECCErrors, its processes: Device Not found"
    ]
