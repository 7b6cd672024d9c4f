"""Detectors of series that stand out in the recent values of a metric."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from measured import logged

from dragon.infrastructure.errors import NotSupportedError
from dragon.telemetry import Detector, Telemetry

WaitUntil = Callable[[Callable[[], object]], None]


@pytest.fixture
def slow_rank(telemetry: Telemetry) -> Telemetry:
    """The telemetry with the times of three ranks, of which rank 2 is slow."""
    for rank, seconds in enumerate((0.5, 0.5, 2.0)):
        for _ in range(3):
            telemetry.add_data("step", seconds, tags={"rank": rank})
    return telemetry


def ranks(found: list[dict[str, Any]]) -> list[str]:
    return [record["tags"]["rank"] for record in found]


def test_a_detector_finds_the_series_that_stands_out(slow_rank: Telemetry) -> None:
    (found,) = Detector("step").detect()
    assert found["tags"]["rank"] == "2"
    assert set(found["dps"].values()) == {2.0}
    assert Detector("step").slow_hosts() == [found["tags"]["host"]]


def test_a_detector_only_examines_series_with_the_given_tags(slow_rank: Telemetry) -> None:
    assert ranks(Detector("step", tags={"rank": ["0", "1"]}).detect()) == []
    assert ranks(Detector("step", tags={"rank": ["0", "2"]}).detect()) == ["2"]


def test_a_detector_ignores_old_values(telemetry: Telemetry) -> None:
    for rank, seconds in enumerate((0.5, 0.5, 2.0)):
        for ago in range(40, 50):
            telemetry.add_data("step", seconds, timestamp=time.time() - ago, tags={"rank": rank})
    assert Detector("step", collection_rate=3).detect() == []
    assert ranks(Detector("step", collection_rate=6).detect()) == ["2"]


def test_a_detector_never_reports_sacred_nodes(slow_rank: Telemetry) -> None:
    (host,) = Detector("step").slow_hosts()
    assert Detector("step", sacred_nodes=[host]).detect() == []
    with pytest.raises(TypeError, match="a list of host names"):
        Detector("step", sacred_nodes=host)


def test_a_subclass_can_have_its_own_rule(slow_rank: Telemetry) -> None:
    class Fast(Detector):
        @staticmethod
        def analyze_data(data: list[dict[str, Any]], args: Any) -> list[dict[str, Any]]:
            return [record for record in data if max(record["dps"].values()) < args]

    assert ranks(Fast("step", analysis_args=1.0).detect()) == ["0", "1"]


def test_a_running_detector_logs_each_series_that_stands_out_once(slow_rank: Telemetry, wait_until: WaitUntil) -> None:
    with logged() as lines, Detector("step", collection_rate=0.05, analysis_args={"least_values": 1}):
        for _ in range(10):
            for rank, seconds in enumerate((0.5, 0.5, 2.0)):
                slow_rank.add_data("step", seconds, tags={"rank": rank})
            time.sleep(0.02)
        wait_until(lambda: lines)
    (line,) = lines
    assert line.startswith("metric step stands out on host ")
    assert "rank 2: it is 2" in line


def test_a_subclass_can_act_and_stop_the_detector(slow_rank: Telemetry, wait_until: WaitUntil) -> None:
    acted: list[str] = []

    class Acts(Detector):
        def report(self, found: list[dict[str, Any]]) -> None:
            acted.extend(ranks(found))
            self.stop()

    detector = Acts("step", collection_rate=0.1)
    detector.start()
    wait_until(lambda: acted)
    detector.stop()
    assert acted == ["2"]


def test_an_exception_of_the_rule_ends_the_detector_and_is_raised_by_stop(
    slow_rank: Telemetry, wait_until: WaitUntil
) -> None:
    detector = Detector("step", collection_rate=0.05, analysis_args={"ratio": 0})
    with logged() as lines:
        detector.start()
        with pytest.raises(RuntimeError, match="runs already"):
            detector.start()
        wait_until(lambda: lines)
    assert lines == [
        "the detector of step ends: ValueError: ratio=0: it must be above 1; 1.25 means a quarter more than usual"
    ]
    with pytest.raises(ValueError, match="ratio=0"):
        detector.stop()
    detector.stop()


def test_a_detector_does_not_start_without_telemetry() -> None:
    with pytest.raises(RuntimeError, match="the run has no telemetry"):
        Detector("step").start()


def test_a_detector_does_not_support_restarts(telemetry: Telemetry) -> None:
    with pytest.raises(NotSupportedError, match="place processes on the others"):
        Detector("step").trigger_restart()
    with pytest.raises(NotSupportedError, match="PosixCheckpointPersister"):
        Detector("step", restartable_ddicts=[{}])


def test_a_collection_rate_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="the shortest is"):
        Detector("step", collection_rate=0)
