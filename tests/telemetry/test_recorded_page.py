"""The page of a recording."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conftest import Site

pytest.importorskip("pyarrow")

from test_recorded_files import NOON, lifetime, row, written

from dragon.agent.telemetry.recorder import Parcel
from dragon.cli.dashboard import recorded_page
from dragon.infrastructure.metrics import Kind, Lifetime, Span
from dragon.telemetry import NoRecordingError

PROGRAM = """
import sys, time
from dragon.infrastructure.policy import Policy
from dragon.native.process import Process
from dragon.telemetry import Telemetry

if __name__ == "__main__":
    there = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
    Telemetry().add_data("loss <b>", 0.25, tags={"model": "<small>"})
    for name, code in ("works", 0), ("fails <b>", 3):
        process = Process(sys.exit, (code,), ident=name, policy=there)
        process.start()
        process.join()
    time.sleep(1)
"""


@pytest.fixture(scope="module")
def directory(shared_site: Site) -> Path:
    """Recordings of a run of two nodes."""
    directory = shared_site.folder / "recordings"
    program = shared_site.write(PROGRAM)
    done = shared_site.dragon("--nodes", "2", "--telemetry", directory, program, env={"DRAGON_TELEMETRY_PERIOD": "0.1"})
    assert done.returncode == 0, done.stderr
    return directory


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page)
    assert found is not None
    return json.loads(found[1])  # type: ignore[no-any-return]


def test_the_page_of_a_run_is_a_page_in_its_folder(site: Site, directory: Path) -> None:
    done = site.dragon("dashboard", directory)
    assert (done.returncode, done.stderr) == (0, "")
    path = Path(done.stdout.strip())
    assert path.name == "dashboard.html"
    assert path.parent.parent == directory
    data = data_of(path.read_text())
    assert data["run"]["hosts"] == ["node-0", "node-1"]
    assert data["run"]["command"].endswith("program.py")
    drawn = {(metric, tags["host"]) for metric, tags, _, _ in data["records"]}
    for metric in "cpu_percent", "used_RAM", "network_sent", "disk_read", "def_pool_utilization":
        assert {(metric, "node-0"), (metric, "node-1")} <= drawn
    assert {one["name"]: one["code"] for one in data["lifetimes"]} == {"head": 0, "works": 0, "fails <b>": 3}


@pytest.fixture
def small(site: Site) -> Path:
    """A directory with a recording of a node."""
    directory = site.folder / "recordings"
    directory.mkdir()
    written(directory / "run", Parcel(NOON + 1, [row(NOON, 1)], [lifetime(1)]))
    return directory


def test_an_option_chooses_the_file_of_the_page(site: Site, small: Path) -> None:
    done = site.dragon("dashboard", small, "-o", site.folder / "page.html")
    assert done.stdout == f"{site.folder / 'page.html'}\n"
    page = (site.folder / "page.html").read_text()
    assert site.dragon("dashboard", small, "-o", "-").stdout == f"{page}\n"
    assert not (small / "run" / "dashboard.html").exists()
    assert "default-src 'none'" in page
    assert re.findall(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=|@import|url\(", page) == []  # it has all itself


def test_the_page_shows_charts_processes_and_the_timeline(site: Site, directory: Path, browser: Any) -> None:
    asked: list[str] = []
    browser.on("request", lambda request: asked.append(request.url))
    path = Path(site.dragon("dashboard", directory).stdout.strip()).resolve()
    browser.goto(path.as_uri())
    browser.wait_for_selector("#processes tbody tr")
    assert asked == [path.as_uri()]
    assert browser.inner_text("#command").endswith("program.py")
    titles = browser.locator(".chart:visible h3").all_inner_texts()
    assert {"CPU", "Memory", "Network", "Disks", "Shared memory of the run", "loss <b>"} <= set(titles)
    first = browser.inner_text("#processes tbody tr:first-child")
    assert "fails <b>" in first
    assert "exit code 3" in first
    browser.locator("#timeline[data-lanes='5']").wait_for()  # two nodes and three processes
    assert "fails <b> (puid" in browser.locator("#overview .failures li").inner_text()
    assert "3 processes in " in browser.locator("#overview .standing").inner_text()
    grounds = set()
    for scheme in "light", "dark":
        browser.emulate_media(color_scheme=scheme)
        grounds.add(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["empty"], "there is no telemetry of a run in empty; `dragon --telemetry empty PROGRAM` records one"),
        (["recordings", "--node", "x"], "the run had no node 'x'; there were here"),
        (["recordings", "-o", "absent/page.html"], "No such file or directory"),
    ],
)
def test_a_page_that_is_not_possible_is_an_error(site: Site, small: Path, words: list[str], told: str) -> None:
    (site.folder / "empty").mkdir()
    done = site.dragon("dashboard", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("dragon dashboard: ")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_help_has_examples(site: Site) -> None:
    text = site.dragon("dashboard", "--help").stdout
    assert "examples:" in text
    assert "dragon dashboard runs" in text


def test_a_page_of_a_run_without_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoRecordingError, match="no measurements of the run"):
        recorded_page(written(tmp_path / "run"))


def test_the_error_for_a_run_with_only_damaged_files_names_the_cause(tmp_path: Path) -> None:
    recording = written(tmp_path / "run", Parcel(NOON, [row(NOON, 1)], []))
    (file,) = recording.folder.glob("*.parquet")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(
        NoRecordingError, match=f"1 damaged files are left out, such as {file.name}, and .* nothing else"
    ):
        recorded_page(recording)


def test_a_page_with_too_many_processes_has_the_failed_ones(tmp_path: Path) -> None:
    fine = [lifetime(puid, NOON + puid + 10, 0) for puid in range(1, 21_000)]
    failed = [lifetime(puid, NOON + puid, 1) for puid in range(50_000, 50_100)]
    data = data_of(recorded_page(written(tmp_path / "run", Parcel(NOON, [], [*fine, *failed]))))
    assert sum(one["code"] == 1 for one in data["lifetimes"]) == 100
    assert len(data["lifetimes"]) == 20_000
    assert "20,000 of 21,099 processes are here, those that failed and the longest" in data["run"]["notes"]


def test_a_page_with_too_many_nodes_has_charts_of_some(tmp_path: Path) -> None:
    for node in range(40):
        sample = (NOON, "cpu_percent", (("host", f"node-{node}"),), Kind.GAUGE, 1.0)
        process = Lifetime(node, f"node-{node}", node, 1, "worker", 0, 0, NOON)
        recording = written(tmp_path / "run", Parcel(NOON, [sample], [process]), node=node, host=f"node-{node}")
    data = data_of(recorded_page(recording))
    assert len(data["records"]) == 32
    assert "32 of 40 nodes have charts" in data["run"]["notes"]
    chosen = data_of(recorded_page(recording, ["node-39"]))
    assert {tags["host"] for _, tags, _, _ in chosen["records"]} == {"node-39"}


def of_task(end: float, length: float, failed: bool = False, what: str = "task") -> Span:
    return Span(end - length, end, 101, 7, what, "square", failed=failed)


def test_the_page_has_the_tasks_of_pools_and_batches(tmp_path: Path) -> None:
    spans = [of_task(NOON + 2, 0.5), of_task(NOON + 3, 0.5, failed=True), of_task(NOON + 4, 1.0, what="get")]
    recording = written(tmp_path, Parcel(NOON + 1, [row(NOON, 1)], [lifetime(1)], spans))
    data = data_of(recorded_page(recording))
    assert data["run"]["level"] == 5
    (node,) = data["tasks"]
    assert (node["node"], node["count"]) == (0, 2)
    told = sorted((end - NOON, name, failed) for _, _, end, name, failed in node["tasks"])
    assert told == [(2.0, "square", False), (3.0, "square", True)]


def test_a_page_with_too_many_tasks_has_the_failed_and_the_longest_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragon.cli.dashboard._MOST_TASKS", 2)
    spans = [of_task(NOON + 2, 0.5), of_task(NOON + 3, 0.1, failed=True), of_task(NOON + 4, 0.2)]
    recording = written(tmp_path, Parcel(NOON + 1, [row(NOON, 1)], [lifetime(1)], spans))
    data = data_of(recorded_page(recording))
    assert sorted(end - NOON for _, _, end, _, _ in data["tasks"][0]["tasks"]) == [2.0, 3.0]
    assert "2 of 3 tasks are here, those that failed and the longest" in data["run"]["notes"]


def test_the_page_shows_tasks_in_the_timeline(site: Site, tmp_path: Path, browser: Any) -> None:
    spans = [of_task(NOON + 2, 0.5), of_task(NOON + 3, 0.5, failed=True)]
    page = tmp_path / "page.html"
    lives = [lifetime(1, NOON + 5, 0)]
    page.write_text(
        recorded_page(written(tmp_path / "run", Parcel(NOON + 1, [row(NOON, 1), row(NOON + 6, 1)], lives, spans)))
    )
    browser.goto(page.as_uri())
    browser.locator("#timeline[data-tasks='2']").wait_for()
    assert browser.locator("#tasks").inner_text() == "2 tasks."


def test_the_chart_of_a_long_time_has_few_values(tmp_path: Path) -> None:
    rows = [row(NOON + second, second) for second in range(3600)]
    data = data_of(recorded_page(written(tmp_path / "run", Parcel(NOON + 3600, rows, [lifetime(1)]))))
    ((_, _, times, values),) = data["records"]
    assert len(times) == len(values) == 300
    assert times[0] == NOON


def test_values_that_are_not_finite_are_gaps(tmp_path: Path) -> None:
    rows = [row(NOON + second, value) for second, value in enumerate((1.0, float("nan"), float("inf"), 2.0))]
    data = data_of(recorded_page(written(tmp_path / "run", Parcel(NOON + 3, rows, [lifetime(1)]))))
    assert data["records"][0][3] == [1.0, None, None, 2.0]


def test_a_note_says_that_a_run_did_not_end_normally(tmp_path: Path) -> None:
    parcel = Parcel(NOON + 3, [row(NOON + 1)], [lifetime(1)])
    for ended in (True, False):
        notes = data_of(recorded_page(written(tmp_path / str(ended), parcel, ended=ended)))["run"]["notes"]
        assert ("it was killed, or has not ended" in notes) is not ended


def test_texts_of_a_program_are_escaped(tmp_path: Path) -> None:
    nasty = "</script><!--<script>"
    page = recorded_page(
        written(tmp_path / "run", Parcel(NOON + 3, [row(NOON + 1, 1, nasty, **{nasty: nasty})], [lifetime(1)]))
    )
    assert nasty not in page
    assert data_of(page)["records"][0][0] == nasty
