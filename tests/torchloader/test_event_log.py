"""The event log: events are written before they take effect, and replaying them gives the same records."""

from __future__ import annotations

import json
import logging
import resource
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import TRANSITIONS, Spec, State
from torchloader.scheduling.log import EventLog, FullError, LogError, Records, encoded, read, replay

SPEC = Spec("a", "resnet", {"node0": (0, 1)}, 64, 100, settings={"output_folder": "out"})


def test_events_are_lines_of_json(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        log.records.submit(SPEC, now=1.5)
        log.records.change("a", State.STARTING, 2.0, "arrival", workers=3, placement={"node0": (0, 1)})
    first, second = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert first["details"]["spec"]["settings"] == {"output_folder": "out"}
    assert second == {
        "sequence": 2,
        "time": 2.0,
        "application": "a",
        "from": "queued",
        "to": "starting",
        "reason": "arrival",
        "details": {"workers": 3, "placement": {"node0": [0, 1]}},
    }


def test_a_log_can_be_opened_again_and_continued(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events") as log:
        log.records.submit(SPEC, now=0)
    with EventLog(tmp_path / "events") as log:
        log.records.change("a", State.STARTING, 1, "arrival")
        assert [event.sequence for event in read(tmp_path / "events")] == [1, 2]
        assert dict(replay(tmp_path / "events")) == dict(log.records)


steps = st.tuples(
    st.integers(0, 9),
    st.integers(0, 20),
    st.fixed_dictionaries(
        {},
        optional={
            "curve": st.builds(Curve, st.floats(0.1, 1e4), st.floats(1e-4, 10), st.floats(0, 1)),
            "workers": st.integers(0, 64),
            "placement": st.dictionaries(st.sampled_from("xyz"), st.lists(st.integers(0, 7)).map(tuple)),
            "progress": st.floats(0, 1e6),
            "held": st.booleans(),
            "cost": st.floats(0, 100),
        },
    ),
)


@given(st.lists(steps, max_size=40))
def test_the_replayed_records_equal_the_live_ones(done: list[tuple[int, int, dict[str, object]]]) -> None:
    with tempfile.TemporaryDirectory() as folder, EventLog(Path(folder) / "events") as log:
        for time, (which, choice, details) in enumerate(done):
            name = f"job{which}"
            if name not in log.records:
                log.records.submit(Spec(name, "vgg", which + 1, 8, 10), time, curve=details.get("curve"))  # type: ignore[arg-type]
                continue
            state = log.records[name].state
            ways = [*sorted(TRANSITIONS[state]), state]
            log.records.change(name, ways[choice % len(ways)], time, "as it goes", **details)
        again = replay(Path(folder) / "events")
        assert dict(again) == dict(log.records)
        assert list(again) == list(log.records)


def test_an_incomplete_last_line_is_dropped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "events"
    with EventLog(path) as log:
        log.records.submit(SPEC, now=0)
        whole = path.read_bytes()
        log.records.change("a", State.CANCELLED, 1, "asked for")
    path.write_bytes(path.read_bytes()[:-7])
    with caplog.at_level(logging.WARNING, "torchloader"), EventLog(path) as log:
        assert log.records["a"].state is State.QUEUED
        assert path.read_bytes() == whole
        log.records.change("a", State.STARTING, 2, "arrival")
    assert "the last line is incomplete" in caplog.text
    assert replay(path)["a"].state is State.STARTING


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sequence": 3}, "event 3 follows event 1"),
        ({"from": "running"}, "it is queued, not running"),
        ({"to": "finished"}, "queued may change to .*starting, not finished"),
        ({"application": "b"}, "the first event of an application submits it"),
        ({"details": {"x": 1}}, "unknown field `x`"),
        ({"to": "lost"}, "lost"),
        ({"time": None}, "float"),
    ],
)
def test_the_error_about_an_inconsistent_event_has_its_line(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    path = tmp_path / "events"
    with EventLog(path) as log:
        log.records.submit(SPEC, now=0)
    fine = {
        "sequence": 2,
        "time": 1,
        "application": "a",
        "from": "queued",
        "to": "starting",
        "reason": "",
        "details": {},
    }
    path.write_text(path.read_text() + json.dumps(fine | change) + "\n")
    with pytest.raises(LogError, match=rf"events, line 2: .*{says}"):
        replay(path)


def test_the_error_about_a_malformed_line_has_its_number(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("nonsense\n")
    with pytest.raises(LogError, match=r"events, line 1: .*malformed"), EventLog(tmp_path / "events"):
        pass


def test_two_masters_cannot_write_the_same_log(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events"), pytest.raises(BlockingIOError, match="another master"):
        EventLog(tmp_path / "events")


def test_the_error_about_a_failed_write_names_the_log_which_stays_intact(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with EventLog(path) as log:
        log.records.submit(SPEC, now=0)
        before, (soft, hard) = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, hard))
        try:
            with pytest.raises(FullError, match="events cannot be written: No space left"):
                log.records.change(SPEC.name, State.STARTING, 1, "")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before


def test_an_event_that_cannot_be_written_has_no_effect() -> None:
    def full(event: object) -> None:
        raise OSError("disk full")

    records = Records(full)
    with pytest.raises(OSError, match="disk full"):
        records.submit(SPEC, now=0)
    assert dict(records) == {}


def test_invalid_changes_of_state_are_refused() -> None:
    records = Records()
    records.submit(SPEC, now=0)
    with pytest.raises(ValueError, match="queued may change to cancelled, failed, starting, not running"):
        records.change("a", State.RUNNING, 1, "wished for")
    with pytest.raises(ValueError, match="is an application 'a' already"):
        records.submit(SPEC, now=1)


def test_a_job_that_ends_returns_its_devices_and_cores() -> None:
    records = Records()
    records.submit(SPEC, now=0)
    records.change("a", State.STARTING, 1, "arrival", workers=2, placement={"node0": (0, 1)})
    records.change("a", State.RUNNING, 1, "it trains")
    records.change("a", State.RESIZING, 5, "arrival", workers=4)
    assert (records["a"].workers, records["a"].moved) == (4, 5)
    records.change("a", State.FINISHED, 9, "done", progress=100.0)
    assert (records["a"].workers, records["a"].placement, records["a"].progress) == (0, {}, 100)


def test_the_line_of_an_event_ends_with_a_newline() -> None:
    assert encoded(Records().submit(SPEC, now=0)).endswith(b"}\n")
