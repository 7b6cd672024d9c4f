"""TimeKeeper, which measures where a program spends its time."""

from __future__ import annotations

import json
import threading
import time

import pytest

from conftest import Site
from dragon.telemetry import AnalysisClient, Telemetry
from dragon.utils import TimeKeeper


def test_seconds_are_summed_by_id() -> None:
    timings = TimeKeeper("solver", recording=True)
    for _ in range(2):
        with timings.record("assemble"):
            time.sleep(0.01)
    begin = timings.now()
    timings.add("solve", begin, begin + 2)
    timings.add_elapsed(7, 0.5)
    timings.add_elapsed(7, 0.25)
    found = timings.get_timings()
    assert 0.02 <= found.pop("assemble") < 10
    assert found == {"solve": 2, 7: 0.75}
    assert "solve" in str(timings)


def test_the_time_of_a_block_that_raises_an_error_is_recorded() -> None:
    timings = TimeKeeper(recording=True)
    with pytest.raises(KeyError), timings.record("step"):
        raise KeyError
    assert timings.get_timings()["step"] > 0


def test_the_time_of_a_block_can_begin_at_a_given_earlier_time() -> None:
    timings = TimeKeeper(recording=True)
    with timings.record("step", timings.now() - 5):
        pass
    assert timings.get_timings()["step"] > 5


def test_reset_sets_the_seconds_of_an_id_to_zero() -> None:
    timings = TimeKeeper(recording=True)
    assert timings.empty()
    timings.add_elapsed("a", 1)
    timings.add_elapsed("b", 1)
    timings.reset("a")
    assert timings.get_timings() == {"a": 0, "b": 1}
    timings.reset_all()
    assert timings.empty()


def test_nothing_is_recorded_by_default() -> None:
    timings = TimeKeeper()
    timings.add_elapsed("a", 1)
    assert timings.empty()
    assert "recording=True" in str(timings)


def test_threads_can_share_a_time_keeper() -> None:
    timings = TimeKeeper(recording=True)

    def work() -> None:
        for _ in range(1000):
            timings.add_elapsed("step", 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert timings.get_timings() == {"step": 4000}


def test_stop_sends_the_sums_to_the_telemetry_of_the_run(telemetry: Telemetry) -> None:
    timings = TimeKeeper("solver", collection_window=1000)
    timings.add_elapsed("solve", 2)
    timings.add_elapsed("solve", 3)
    timings.stop()
    assert timings.get_timings() == {"solve": 0}
    (record,) = AnalysisClient().get_data("solver", tags={"id": "solve"})
    assert list(record["dps"].values()) == [5]


def test_sums_are_sent_at_the_end_of_each_window(telemetry: Telemetry) -> None:
    timings = TimeKeeper("solver", collection_window=0.01, clear_all=False)
    timings.add_elapsed("solve", 2)
    deadline = time.monotonic() + 60
    while not AnalysisClient().get_data("solver") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(AnalysisClient().get_data("solver")[0]["dps"].values()) == {2}
    timings.stop()
    assert timings.get_timings() == {"solve": 2}


def test_the_remaining_sums_are_sent_at_the_end_of_a_process(site: Site) -> None:
    source = """
        import json
        from dragon.native.process import Process
        from dragon.telemetry import AnalysisClient
        from dragon.utils import TimeKeeper

        def work():
            TimeKeeper("solver").add_elapsed("solve", 5)

        if __name__ == "__main__":
            process = Process(work)
            process.start()
            assert process.join() == 0
            print(json.dumps([list(r["dps"].values()) for r in AnalysisClient().get_data("solver")]))
    """
    done = site.dragon("--telemetry-level", "1", site.write(source))
    assert (json.loads(done.stdout), done.stderr) == ([[5.0]], "")


@pytest.mark.parametrize("window", [0, -1, float("nan")])
def test_a_window_must_be_a_positive_number_of_seconds(window: float) -> None:
    with pytest.raises(ValueError, match="collection_window"):
        TimeKeeper(collection_window=window)
