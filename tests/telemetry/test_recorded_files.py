"""The files of a recording, complete or incomplete, and the data that is read from them."""

from __future__ import annotations

import math
import shutil
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from dragon.agent.telemetry.recorder import Parcel, Row, Writer
from dragon.agent.telemetry.service import History
from dragon.infrastructure import recordings
from dragon.infrastructure.metrics import AGGREGATES, Aggregate, Kind, Lifetime, Record, tags_of
from dragon.infrastructure.recordings import RunDescription, node_prefix
from dragon.telemetry import Recording

NOON = 1_800_014_400.0  # seconds since 1970; the begin of an hour
HOUR = 3600.0


def row(moment: float, value: float = 0.0, metric: str = "loss", **tags: str) -> Row:
    return moment, metric, tags_of(host="here", **tags), Kind.GAUGE, value


def lifetime(puid: int, ended: float | None = None, code: int | None = None) -> Lifetime:
    return Lifetime(0, "here", puid, 100 + puid, f"process {puid}", 1, 0, NOON + puid, ended, code)


def written(folder: Path, *parcels: Parcel, node: int = 0, host: str = "here", ended: bool = True) -> Recording:
    """Return the recording of a node; without `ended`, its files are those of a run that has not ended."""
    description = RunDescription("3fa9c1", "train.py", NOON, [host] * (node + 1), "1.0")
    writer = Writer(folder, node_prefix(host, node), None if node else description)
    for parcel in [*parcels, Parcel(parcels[-1].time if parcels else NOON, [], [], last=ended)]:
        writer.write(parcel)
    return Recording(folder)


def everything(recording: Recording, metric: str = "loss") -> list[Record]:
    return recording.query([metric], {}, -math.inf, math.inf, 0, "last")


def values(recording: Recording, metric: str = "loss") -> list[float]:
    return [value for _, _, _, found in everything(recording, metric) for value in found]


def sampled(size: int) -> list[int]:
    """Return all lengths near the beginning and the end of a file, and some in between."""
    return sorted({*range(0, size, 13), *range(min(size, 32)), *range(max(size - 32, 0), size + 1)})


TAGS = [{}, {"model": ["small"]}, {"model": ["*"]}, {"host": ["here"]}, {"host": ["there"]}, {"x": ["*"]}]
numbers = st.floats(-1e6, 1e6)
moments = st.one_of(st.integers(-5, 5).map(lambda n: NOON + n), st.floats(NOON - 2 * HOUR, NOON + 2 * HOUR))
rows = st.builds(row, moments, numbers, st.sampled_from(["loss", "speed"]), model=st.sampled_from(["small", "large"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.tuples(moments, st.lists(rows, max_size=8)), max_size=5),
    metrics=st.sampled_from([["loss"], ["loss", "speed"], ["other"], []]),
    tags=st.sampled_from(TAGS),
    start=moments,
    length=st.floats(0, 3 * HOUR),
    interval=st.sampled_from([0.0, 1.0, 7.5, 1000.0]),
    aggregate=st.sampled_from(AGGREGATES),
    ended=st.booleans(),
)
def test_queries_of_a_recording_return_the_same_as_those_of_a_node(
    tmp_path: Path,
    batches: list[tuple[float, list[Row]]],
    metrics: list[str],
    tags: dict[str, list[str]],
    start: float,
    length: float,
    interval: float,
    aggregate: Aggregate,
    ended: bool,
) -> None:
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    batches = sorted(batches, key=lambda pair: pair[0])
    history = History()
    for moment, name, told, kind, value in (each for _, batch in batches for each in batch):
        history.add(name, told, kind, moment, value)
    recording = written(tmp_path / "run", *(Parcel(moment, batch, []) for moment, batch in batches), ended=ended)
    question = (metrics, tags, start, start + length, interval, aggregate)
    assert sorted(recording.query(*question), key=str) == sorted(history.query(*question), key=str)
    assert recording.names() == {name for name, _ in history.kinds()}


def test_a_truncated_stream_is_read_up_to_its_last_complete_batch(tmp_path: Path) -> None:
    written(tmp_path / "run", *(Parcel(NOON, [row(NOON, value)], []) for value in (1, 2, 3)), ended=False)
    (stream,) = (tmp_path / "run").glob("*.arrows")
    data = stream.read_bytes()
    seen = []
    for size in sampled(len(data)):
        stream.write_bytes(data[:size])
        seen.append(values(Recording(tmp_path / "run")))
    assert [found for found, _ in groupby(seen)] == [[], [1], [1, 2], [1, 2, 3]]
    assert seen[-1] == [1, 2, 3] != seen[-2]


@pytest.mark.parametrize("ended", [False, True])
def test_a_recording_without_a_column_of_later_versions_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    schema = recordings.schema_of("lifetimes")
    earlier = schema.remove(schema.get_field_index("terminated"))
    monkeypatch.setattr(recordings, "schema_of", lambda content: earlier)
    recording = written(tmp_path / "run", Parcel(NOON, [], [lifetime(1, NOON + 2, -9)]), ended=ended)
    monkeypatch.undo()
    (process,) = recording.lifetimes()
    assert (process.code, process.terminated, process.has_failed) == (-9, None, True)


def test_the_stream_is_read_if_its_parquet_file_is_incomplete(tmp_path: Path) -> None:
    recording = written(tmp_path / "run", Parcel(NOON, [row(NOON, 1)], []), ended=False)
    (stream,) = recording.folder.glob("*.arrows")
    written(tmp_path / "other", Parcel(NOON, [row(NOON, 1)], []))
    (whole,) = (path.read_bytes() for path in (tmp_path / "other").glob("*.parquet"))
    for size in sampled(len(whole) - 1):
        stream.with_suffix(".parquet").write_bytes(whole[:size])
        assert values(recording) == [1]
    assert recording.damaged == []
    stream.unlink()
    assert recording.damaged == [stream.with_suffix(".parquet")]
    assert values(recording) == []


def test_no_values_are_lost_if_the_clock_jumps(tmp_path: Path) -> None:
    jumps = (0, 2 * HOUR, -5 * HOUR, HOUR / 2, -100 * 365 * 24 * HOUR, 1)
    parcels = [Parcel(NOON + jump, [row(NOON + jump, jump)], []) for jump in jumps]
    assert values(written(tmp_path / "run", *parcels)) == sorted(jumps)


def test_the_files_of_hours_are_named_by_their_time_in_utc(tmp_path: Path) -> None:
    parcels = [Parcel(NOON + ahead, [row(NOON + ahead)], []) for ahead in (0, 3599.9, HOUR, 1)]
    names = {path.name for path in written(tmp_path / "run", *parcels).folder.glob("*.parquet")}
    assert names == {
        "here-0-20270115T12Z.parquet",
        "here-0-20270115T13Z.parquet",
        "here-0-20270115T12Z.2.parquet",
    }


def test_the_row_groups_allow_reading_a_single_metric(tmp_path: Path) -> None:
    dataset = pytest.importorskip("pyarrow.dataset")
    metrics = [f"metric {number}" for number in range(100)]
    parcel = Parcel(NOON, [row(NOON + second, 0, metric) for second in range(1000) for metric in metrics], [])
    recording = written(tmp_path / "run", parcel)
    (fragment,) = dataset.dataset(list(map(str, recording.folder.glob("*.parquet")))).get_fragments()
    read = fragment.split_by_row_group(dataset.field("metric").isin(["metric 7"]))
    assert (len(read), len(fragment.split_by_row_group())) == (1, 4)


def test_the_last_record_of_a_process_is_used(tmp_path: Path) -> None:
    first, second = lifetime(1), lifetime(2)
    ended = lifetime(1, NOON + 5, 0)
    parcels = [Parcel(NOON, [], [first, second]), Parcel(NOON + 5, [], [ended])]
    for has_ended in (False, True):
        assert written(tmp_path / str(has_ended), *parcels, ended=has_ended).lifetimes() == [ended, second]


def test_series_of_two_nodes_with_the_same_name_are_separate(tmp_path: Path) -> None:
    for node in (0, 1):
        recording = written(tmp_path / "run", Parcel(NOON, [row(NOON, node)], []), node=node)
    assert sorted(found for _, _, _, found in everything(recording)) == [[0], [1]]


def test_the_times_of_a_recording_without_a_description_are_those_of_its_values(tmp_path: Path) -> None:
    recording = written(tmp_path / "run", Parcel(NOON, [row(NOON + 1), row(NOON + 3)], []), node=1)
    assert (recording.description, recording.start, recording.end) == (None, NOON + 1, NOON + 3)


def test_other_files_in_the_folder_are_ignored(tmp_path: Path) -> None:
    recording = written(tmp_path / "run", Parcel(NOON, [row(NOON, 1)], []))
    for name in ("mine.parquet", "mine.arrows", "notes.txt", "here-0-20270115T12Z.parquet.unfinished"):
        (recording.folder / name).write_text("mine")
    assert values(recording) == [1]
    assert recording.damaged == []
