"""Dumps: the telemetry that a run has in memory, written to files."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from conftest import Site
from dragon.infrastructure.metrics import Kind
from dragon.telemetry import AnalysisClient, NoRecordingError, Recording, Telemetry

LONG_AGO = 1_000_000_000  # seconds since 1970


def kinds(folder: Path) -> dict[str, str]:
    from pyarrow import dataset

    rows = dataset.dataset(list(map(str, folder.glob("*Z.parquet")))).to_table(["metric", "kind"]).to_pylist()
    return {row["metric"]: row["kind"] for row in rows}


def test_queries_of_a_dump_return_the_same_as_those_of_the_run(telemetry: Telemetry, tmp_path: Path) -> None:
    for number in range(3):
        telemetry.add_data("loss", number, timestamp=LONG_AGO + number, tags={"model": "small"})
    telemetry.add_data("loss", 7, timestamp=LONG_AGO, tags={"model": "large"})
    telemetry.counter("images").add(64)
    with telemetry.timer("step"):
        pass
    client = AnalysisClient()
    folder = client.db_dump(tmp_path / "dumps")
    assert folder.parent == tmp_path / "dumps"
    assert kinds(folder) == {"loss": Kind.GAUGE, "images": Kind.COUNTER, "step": Kind.SUMMARY}
    for metric in "loss", "images", "step":
        told = [
            sorted(one.get_data(metric, start_time=0, interval=0), key=str)
            for one in (client, AnalysisClient(folder), AnalysisClient(folder.parent))
        ]
        assert told[0] == told[1] == told[2] != []
    assert {one.puid for one in AnalysisClient(folder).get_lifetimes()} >= {
        one.puid for one in client.get_lifetimes() if one.ended is None
    }


DUMPS = """
import sys, time
from dragon.telemetry import AnalysisClient

if __name__ == "__main__":
    client = AnalysisClient()
    while len(client.get_data("load_average")) < 2:
        time.sleep(0.05)
    print(client.db_dump("."))
"""


def test_all_nodes_are_dumped(site: Site) -> None:
    done = site.dragon("--nodes", "2", "-T", "2", site.write(DUMPS), env={"DRAGON_TELEMETRY_PERIOD": "0.1"})
    assert (done.returncode, done.stderr) == (0, "")
    recording = Recording(site.folder / done.stdout.strip())
    assert recording.description is not None
    assert recording.description.nodes == ["node-0", "node-1"]
    assert recording.description.command.endswith("program.py")
    hosts = {tags["host"] for _, tags, _, _ in recording.query(["load_average"], {}, 0, float("inf"), 1, "last")}
    assert hosts == {"node-0", "node-1"}


def test_the_newest_of_several_dumps_is_read(telemetry: Telemetry, tmp_path: Path) -> None:
    folders = []
    for loss in 0.25, 0.5:
        telemetry.add_data("loss", loss)
        folders.append(AnalysisClient().db_dump(tmp_path))
    assert len(set(folders)) == 2
    (record,) = AnalysisClient(tmp_path).get_data("loss", interval=0)
    assert list(record["dps"].values()) == [0.25, 0.5]


def test_only_the_user_can_access_a_dump(telemetry: Telemetry, tmp_path: Path) -> None:
    folder = AnalysisClient().db_dump(tmp_path / "dumps")
    for path in folder, folder.parent:
        assert path.stat().st_mode & 0o777 == 0o700


def test_a_failed_dump_leaves_no_files(telemetry: Telemetry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError("no space is left")

    monkeypatch.setattr("pyarrow.parquet.ParquetWriter", fail)
    with pytest.raises(OSError, match="no space is left"):
        AnalysisClient().db_dump(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_dump_without_telemetry_or_pyarrow_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="the run has no telemetry"):
        AnalysisClient().db_dump(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoRecordingError, match="pip install"):
        AnalysisClient().db_dump(tmp_path)


def test_dumping_a_recording_is_refused(telemetry: Telemetry, tmp_path: Path) -> None:
    folder = AnalysisClient().db_dump(tmp_path)
    with pytest.raises(ValueError, match="in files already"):
        AnalysisClient(folder).db_dump(tmp_path)
