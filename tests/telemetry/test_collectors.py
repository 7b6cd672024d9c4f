"""Collectors on every node, and the metrics that they measure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conftest import Site
from dragon.infrastructure.policy import PolicyError
from dragon.native.machine import System
from dragon.telemetry import AnalysisClient, CollectorGroup, SlowGPUDetector, Telemetry
from together import failures

WaitUntil = Callable[[Callable[[], object]], None]


@pytest.fixture
def without_gpus() -> None:
    if System().gpu_policies():
        pytest.skip("this machine has GPUs")


PROGRAM = """
import os, signal, sys, time
from dragon.native.machine import System, current
from dragon.native.process_group import DragonUserCodeError
from dragon.runtime.run import this_run
from dragon.telemetry import AnalysisClient, CollectorDetectorGroup, CollectorGroup, SlowGPUDetector, Telemetry

if __name__ == "__main__":
    Telemetry().start(1)


def seconds_of(times):
    begin = time.process_time()
    for _ in range(times):
        sum(range(400_000))
    return time.process_time() - begin


class Computes(CollectorDetectorGroup):
    @staticmethod
    def collector_test(args):
        return seconds_of(4 if current().hostname == "node-1" else 1)


def check_the_slow_node_of_three_is_found():
    with Computes("compute", collection_rate=0.2, analysis_args={"ratio": 2}) as group:
        while not (slow := group.slow_hosts()):
            time.sleep(0.05)
        assert slow == ["node-1"]
        sacred = Computes("compute", collection_rate=0.2, analysis_args={"ratio": 2}, sacred_nodes=["node-1"])
        assert sacred.slow_hosts() == []
    hosts = {record["tags"]["host"] for record in AnalysisClient().get_data("compute")}
    assert hosts == {"node-0", "node-1", "node-2"}


class ComputesOnGpu(SlowGPUDetector):
    @staticmethod
    def collector_test(args):
        place = current().hostname, os.environ["CUDA_VISIBLE_DEVICES"]
        return seconds_of(20 if place == ("node-1", "1") else 1)


def check_the_slow_gpu_of_six_is_found():
    with ComputesOnGpu(collection_rate=0.3, analysis_args={"ratio": 8}) as group:
        while not (slow := group.detect()):
            time.sleep(0.05)
        assert [(record["tags"]["host"], record["tags"]["gpu"]) for record in slow] == [("node-1", "1")]
        assert len(AnalysisClient().get_data("gpu_test_seconds")) == 6


class Fails(CollectorGroup):
    @staticmethod
    def collector_test(args):
        if current().hostname == "node-1":
            raise OSError("the disk is broken")
        return 1.0


def count():
    return sum(len(record["dps"]) for record in AnalysisClient().get_data("disk", {"host": "node-0"}, interval=0))


def error_of_stop(group):
    try:
        group.stop()
    except DragonUserCodeError as error:
        return str(error)


def check_a_failed_collector_is_reported_and_the_others_continue():
    group = Fails("disk", collection_rate=0.1)
    group.start()
    while not any(one.code for one in AnalysisClient().get_lifetimes() if one.name.startswith("disk")):
        time.sleep(0.05)
    before = count()
    while count() < before + 15:
        time.sleep(0.05)
    assert error_of_stop(group).startswith("collectors of 'disk' failed on node-1, with exit codes [1]")


class Ends(CollectorGroup):
    @staticmethod
    def collector_test(args):
        if current().hostname == "node-1" and time.time() > args:
            os.kill(this_run().agent.pid, signal.SIGKILL)
        return 1.0


def check_the_lost_node_of_a_collector_is_reported():
    group = Ends("ends", collection_rate=0.1, collector_args=time.time() + 0.5)
    group.start()
    while System().nnodes == 3:
        time.sleep(0.05)
    assert error_of_stop(group).startswith("collectors of 'ends' failed on node-1, with exit codes [-9]")
"""


def test_collectors_measure_all_nodes(site: Site) -> None:
    found = failures(site, PROGRAM, "--nodes", "3", "--gpus", "2")
    assert found == {}, found.stderr
    assert found.stderr.count("OSError: the disk is broken") == 1
    site.kill()


def test_collectors_measure_the_time_of_a_cpu_by_default(telemetry: Telemetry, wait_until: WaitUntil) -> None:
    with CollectorGroup("cpu_test", collection_rate=0.05):
        wait_until(lambda: AnalysisClient().get_data("cpu_test"))
    (record,) = AnalysisClient().get_data("cpu_test", interval=0)
    assert all(0 < seconds < 60 for seconds in record["dps"].values())


class Slow(CollectorGroup):
    @staticmethod
    def collector_test(args: float) -> float:
        import time

        time.sleep(args)
        return args


def test_a_collector_within_a_long_measurement_can_be_stopped(telemetry: Telemetry) -> None:
    group = Slow("slow", collector_args=1000.0)
    group.start()
    with pytest.raises(RuntimeError, match="run already"):
        group.start()
    group.stop(patience=0.1)
    assert [one.ended is None for one in AnalysisClient().get_lifetimes() if one.name.startswith("slow-")] == [False]
    group.stop()


def test_collectors_can_be_started_again(telemetry: Telemetry, wait_until: WaitUntil) -> None:
    group = CollectorGroup("again", collection_rate=0.05)
    for count in 1, 2:
        with group:
            wait_until(lambda expected=count: len(AnalysisClient().get_data("again")) == expected)


def test_collectors_do_not_start_without_telemetry() -> None:
    with pytest.raises(RuntimeError, match="the run has no telemetry"):
        CollectorGroup().start()


@pytest.mark.usefixtures("without_gpus")
def test_collectors_for_gpus_are_refused_without_a_gpu(telemetry: Telemetry) -> None:
    with pytest.raises(PolicyError, match="SlowGPUDetector measures GPUs, and no node of the run has one"):
        SlowGPUDetector().start()
    with pytest.raises(PolicyError, match="CollectorGroup measures GPUs"):
        CollectorGroup(per_gpu=True).start()


def test_the_work_of_a_gpu_is_timed() -> None:
    pytest.importorskip("torch")
    seconds = SlowGPUDetector.collector_test({"size": 64, "repeats": 2, "device": "cpu"})
    assert 0 < seconds < 60


def test_a_metric_name_of_the_runtime_is_refused() -> None:
    with pytest.raises(ValueError, match="one that the runtime measures"):
        CollectorGroup("cpu_percent")
    with pytest.raises(ValueError, match="the shortest is"):
        CollectorGroup(collection_rate=0.001)
