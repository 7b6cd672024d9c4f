"""Tests that need a real GPU: CUDA in processes and loading workers, measurements of NVML, and NCCL."""

from __future__ import annotations

import multiprocessing as mp
import os
import sys
import time
from typing import Any

import pytest
import torch

from conftest import Site
from dragon.ai.collective_group import CollectiveGroup
from dragon.data import DDict
from dragon.native.machine import System
from dragon.native.process import ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.native.queue import Queue
from dragon.telemetry import AnalysisClient, Telemetry
from torchloader import ElasticDataLoader

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")
WORKERS: dict[str, Any] = {"num_workers": 2, "seed": 1}


@pytest.fixture(autouse=True)
def _cuda_is_in_use() -> None:
    """Use CUDA in this process, as a trainer with its model on the GPU does."""
    torch.ones(1, device="cuda")


class Numbers:
    """Samples made on the CPU."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index))


class OnTheGpu(Numbers):
    """Samples computed on the GPU, by the worker that reads them."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index).cuda() * 2


@pytest.mark.parametrize("method", [None, "fork", "spawn"])
@pytest.mark.parametrize("pinned", [False, True])
def test_workers_load_for_a_program_that_uses_cuda(method: str | None, pinned: bool) -> None:
    with ElasticDataLoader(Numbers(), 8, multiprocessing_context=method, pin_memory=pinned, **WORKERS) as loader:
        for _ in range(2):
            rows = [row for batch in loader for row in batch.to("cuda", non_blocking=True)[:, 0].tolist()]
            assert rows == [float(index) for index in range(64)]


def test_cuda_in_a_forked_worker_is_an_error() -> None:
    with (
        ElasticDataLoader(OnTheGpu(), 8, multiprocessing_context="fork", **WORKERS) as loader,
        pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"),
    ):
        next(iter(loader))


def test_spawned_workers_compute_samples_on_the_gpu() -> None:
    with ElasticDataLoader(OnTheGpu(), 8, multiprocessing_context="spawn", **WORKERS) as loader:
        batches = list(loader)
    assert {batch.device.type for batch in batches} == {"cuda"}
    assert [row for batch in batches for row in batch[:, 0].tolist()] == [2.0 * index for index in range(64)]


def test_batches_on_the_gpu_arrive_from_workers_that_have_ended() -> None:
    options: dict[str, Any] = {"multiprocessing_context": "spawn", "prefetch_factor": 8, **WORKERS}
    with ElasticDataLoader(OnTheGpu(), 4, **options) as loader:
        batches = iter(loader)
        received = [next(batches)]
        time.sleep(1)  # until the next ones are made
        loader.resize(0)
        time.sleep(1)
        received += batches
    assert [row for batch in received for row in batch[:, 0].tolist()] == [2.0 * index for index in range(64)]


def test_batches_are_unchanged_while_they_are_copied_to_the_gpu() -> None:
    """The copy of a pinned batch runs behind a kernel of 50 ms, while the loader makes the next batches."""
    with ElasticDataLoader(Numbers(), 4, pin_memory=True, **WORKERS) as loader:
        for _ in range(5):
            given = []
            for batch in loader:
                torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
                given.append(batch.to("cuda", non_blocking=True))
                del batch
            rows = torch.cat(given)[:, 0].tolist()
            assert rows == [float(index) for index in range(64)]


def doubled(tensors: Any, results: Any) -> None:
    results.put((tensors.get() * 2).cpu())


@pytest.fixture
def dragons() -> Any:
    mp.set_start_method("dragon", force=True)
    return mp.get_context("dragon")


def test_a_tensor_on_the_gpu_is_sent_through_a_queue(dragons: Any) -> None:
    tensors, results = dragons.Queue(), dragons.Queue()
    process = dragons.Process(target=doubled, args=(tensors, results))
    process.start()
    tensor = torch.arange(1000.0, device="cuda")
    tensors.put(tensor)
    assert results.get(timeout=120).tolist() == (tensor * 2).tolist()
    process.join(60)
    assert process.exitcode == 0


def square(value: int) -> tuple[int, float]:
    return os.getpid(), float((torch.full((1000,), float(value), device="cuda") ** 2).max())


def test_a_pool_computes_on_the_gpu(dragons: Any) -> None:
    with dragons.Pool(2) as pool:
        assert [mean for _, mean in pool.map(square, range(8))] == [float(value**2) for value in range(8)]


def test_a_dictionary_keeps_tensors_of_the_gpu(dragons: Any) -> None:
    tensor = torch.arange(1000.0, device="cuda")
    dictionary = DDict(1, 1, 64 * 1024 * 1024)
    try:
        dictionary["weights"] = tensor
        del tensor
        assert dictionary["weights"].device.type == "cuda"
        assert dictionary["weights"].sum().item() == 499500.0
    finally:
        dictionary.destroy()


def visible(results: Queue) -> None:
    results.put((os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()))


def test_processes_see_the_gpus_of_their_policy() -> None:
    results = Queue()
    group = ProcessGroup()
    for policy in System().gpu_policies():
        group.add_process(1, ProcessTemplate(visible, (results,), policy=policy))
    group.init()
    group.start()
    group.join(120)
    group.close()
    gpus = range(torch.cuda.device_count())
    assert sorted(results.get() for _ in gpus) == [(str(gpu), 1) for gpu in gpus]


def reduce_by_nccl(results: Queue) -> None:
    import torch.distributed as dist

    dist.init_process_group("nccl")
    total = torch.ones(1000, device="cuda") * (dist.get_rank() + 1)
    dist.all_reduce(total)
    results.put(float(total.mean()))
    dist.destroy_process_group()


def test_one_rank_per_gpu_reduces_a_sum_with_nccl() -> None:
    results, ranks = Queue(), torch.cuda.device_count()
    group = CollectiveGroup(reduce_by_nccl, (results,), port=29771)
    group.start()
    group.join()
    group.close()
    assert [results.get() for _ in range(ranks)] == [ranks * (ranks + 1) / 2] * ranks


def test_telemetry_has_the_measurements_of_nvml() -> None:
    pytest.importorskip("pynvml")
    telemetry = Telemetry(telem_cfg={"collector_rate": 0.2})
    telemetry.start(4)
    try:
        matrix = torch.rand(4096, 4096, device="cuda")
        wanted = {"DeviceUtilization", "DeviceMemoryUsed", "DevicePowerUsage", "DeviceTemperature"}
        found: dict[str, float] = {}
        end = time.monotonic() + 60
        while found.get("DeviceUtilization", 0) < 50 or not wanted <= found.keys():
            assert time.monotonic() < end, found
            for _ in range(50):
                matrix = torch.nn.functional.normalize(matrix @ matrix)
            torch.cuda.synchronize()
            for record in AnalysisClient().get_data(wanted, tags={"gpu": "0"}, interval=0):
                found[record["metric"]] = [*record["dps"].values()][-1]
        assert found["DeviceMemoryUsed"] > 64 * 1024 * 1024
        assert 0 < found["DeviceTemperature"] < 110
        assert found["DevicePowerUsage"] > 50
    finally:
        telemetry.shutdown()


def test_the_memory_of_the_gpu_is_released_after_a_process_was_killed(site: Site) -> None:
    program = site.write("""
        import os, signal, torch
        held = torch.ones(4 * 1024**3, dtype=torch.uint8, device="cuda")
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    before = torch.cuda.mem_get_info()[0]
    done = site.run(sys.executable, "-m", "dragon", program, timeout=120)
    assert done.returncode != 0
    end = time.monotonic() + 30
    while torch.cuda.mem_get_info()[0] < before - 64 * 1024**2:
        assert time.monotonic() < end
        time.sleep(0.1)
