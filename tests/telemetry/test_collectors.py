"""Collectors on every node, and the metrics that they measure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conftest import Site
from dragon.infrastructure.policy import PolicyError
from dragon.native.machine import System
from dragon.telemetry import AnalysisClient, CollectorGroup, SlowGPUDetector, Telemetry

WaitUntil = Callable[[Callable[[], object]], None]


@pytest.fixture
def without_gpus() -> None:
    if System().gpu_policies():
        pytest.skip("this machine has GPUs")


# On node-1 the same work takes four times as much of the CPU.
ONE_NODE_IS_SLOW = """
import sys, time
from dragon.native.machine import current
from dragon.telemetry import AnalysisClient, CollectorDetectorGroup, Telemetry

class Computes(CollectorDetectorGroup):
    @staticmethod
    def collector_test(args):
        times = 4 if current().hostname == "node-1" else 1
        begin = time.process_time()
        for _ in range(times):
            sum(range(args))
        return time.process_time() - begin

if __name__ == "__main__":
    Telemetry().start(1)
    with Computes("compute", collection_rate=0.2, analysis_args={"ratio": 2}, collector_args=400_000) as group:
        while not (slow := group.slow_hosts()):
            time.sleep(0.05)
        print(slow)
        sacred = Computes("compute", collection_rate=0.2, analysis_args={"ratio": 2}, sacred_nodes=["node-1"])
        print(sacred.slow_hosts())
    print(sorted({record["tags"]["host"] for record in AnalysisClient().get_data("compute")}))
"""


def test_the_slow_node_of_three_is_found(site: Site) -> None:
    done = site.dragon("--nodes", "3", site.write(ONE_NODE_IS_SLOW))
    assert (done.returncode, done.stdout) == (0, "['node-1']\n[]\n['node-0', 'node-1', 'node-2']\n"), done.stderr
    assert done.stderr.count("\n") <= 1  # the detector may have said it as well


ONE_NODE_FAILS = """
import time
from dragon.native.machine import current
from dragon.native.process_group import DragonUserCodeError
from dragon.telemetry import AnalysisClient, CollectorGroup, Telemetry

class Fails(CollectorGroup):
    @staticmethod
    def collector_test(args):
        if current().hostname == "node-1":
            raise OSError("the disk is broken")
        return 1.0

def count():
    return sum(len(record["dps"]) for record in AnalysisClient().get_data("disk", {"host": "node-0"}, interval=0))

def failed():
    return any(one.code for one in AnalysisClient().get_lifetimes())

if __name__ == "__main__":
    Telemetry().start(1)
    group = Fails("disk", collection_rate=0.1)
    group.start()
    while not failed():
        time.sleep(0.05)
    before = count()
    while count() < before + 15:
        time.sleep(0.05)
    try:
        group.stop()
    except DragonUserCodeError as error:
        print(error)
"""


def test_a_failed_collector_is_reported_and_the_others_continue(site: Site) -> None:
    done = site.dragon("--nodes", "2", site.write(ONE_NODE_FAILS))
    assert done.stdout.startswith("collectors of 'disk' failed on node-1, with exit codes [1]")
    assert done.stderr.count("OSError: the disk is broken") == 1


# What the second GPU of node-1 computes takes it twenty times as long.
ONE_GPU_IS_SLOW = """
import os, time
from dragon.native.machine import current
from dragon.telemetry import AnalysisClient, SlowGPUDetector, Telemetry

class Computes(SlowGPUDetector):
    @staticmethod
    def collector_test(args):
        place = current().hostname, os.environ["CUDA_VISIBLE_DEVICES"]
        begin = time.process_time()
        for _ in range(20 if place == ("node-1", "1") else 1):
            sum(range(400_000))
        return time.process_time() - begin

if __name__ == "__main__":
    Telemetry().start(1)
    with Computes(collection_rate=0.3, analysis_args={"ratio": 8}) as group:
        while not (slow := group.detect()):
            time.sleep(0.05)
        for record in slow:
            print(record["tags"]["host"], record["tags"]["gpu"])
        print(len(AnalysisClient().get_data("gpu_test_seconds")))
"""


def test_the_slow_gpu_of_four_is_found(site: Site) -> None:
    done = site.dragon("--nodes", "2", "--gpus", "2", site.write(ONE_GPU_IS_SLOW))
    assert (done.returncode, done.stdout) == (0, "node-1 1\n4\n"), done.stderr


ONE_NODE_IS_LOST = """
import os, signal, time
from dragon.native.machine import System, current
from dragon.native.process_group import DragonUserCodeError
from dragon.runtime.run import this_run
from dragon.telemetry import CollectorGroup, Telemetry

class Ends(CollectorGroup):
    @staticmethod
    def collector_test(args):
        if current().hostname == "node-1" and time.time() > args:
            os.kill(this_run().agent.pid, signal.SIGKILL)
        return 1.0

if __name__ == "__main__":
    Telemetry().start(1)
    group = Ends("ends", collection_rate=0.1, collector_args=time.time() + 0.5)
    group.start()
    while System().nnodes == 2:
        time.sleep(0.05)
    try:
        group.stop()
    except DragonUserCodeError as error:
        print(error)
"""


def test_the_lost_node_of_a_collector_is_reported(site: Site) -> None:
    done = site.dragon("--nodes", "2", site.write(ONE_NODE_IS_LOST))
    assert done.stdout.startswith("collectors of 'ends' failed on node-1, with exit codes [-9]"), done.stderr
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
