"""The tasks of pools and batches on the page of a run and in the replies of its server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from served import get, serving

from conftest import Site
from dragon.agent.telemetry.tracer import RecentTasks
from dragon.infrastructure.metrics import Span, task_of, task_word

PROGRAM = """
import functools, sys, time
from dragon.infrastructure.policy import Policy
from dragon.native.pool import Pool
from dragon.workflows.batch import Batch

def square(number):
    time.sleep(0.02)
    return number * number

def divide(number):
    time.sleep(0.02)
    return 1 // number

def fetch(number):
    time.sleep(0.02)
    return 1 // number

if __name__ == "__main__":
    place = Policy(placement=Policy.Placement.HOST_NAME, host_name=sys.argv[1]) if sys.argv[1:] else None
    pool = Pool(1, policy=place)
    pool.map(square, range(4), chunksize=2)
    done = [pool.apply_async(functools.partial(divide), (number,)) for number in (0, 1)]
    for one in done:
        one.wait()
    with Batch() as batch:
        tasks = [batch.function(fetch, number) for number in (0, 1)]
        for task in tasks:
            try:
                task.get()
            except ZeroDivisionError:
                pass
    print("told", flush=True)
    sys.stdin.read()
    pool.close()
    pool.join()
"""
RUNNING = """
import os, signal, sys, time
from dragon.native.pool import Pool

def wait_for_a_file(path):
    while not os.path.exists(path):
        time.sleep(0.01)

def be_killed(path):
    wait_for_a_file(path)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    pool = Pool(2)
    tasks = [pool.apply_async(wait_for_a_file, (sys.argv[1],)), pool.apply_async(be_killed, (sys.argv[2],))]
    print("told", flush=True)
    for task in tasks:
        task.wait()
    sys.stdin.read()
    pool.close()
    pool.join()
"""
DONE = {("square", False): 2, ("divide", True): 1, ("divide", False): 1, ("fetch", True): 1, ("fetch", False): 1}
WaitUntil = Callable[[Callable[[], object]], None]


def run(site: Site, *options: str, words: tuple[str, ...] = ()) -> Any:
    return serving(site, "told", "--dashboard", *options, site.write(PROGRAM), *words)


@pytest.fixture
def link(site: Site) -> Iterator[str]:
    """The link to the page of a run at level 5 that has executed tasks."""
    with run(site, "-T", "5") as link:
        yield link


def show(browser: Any, link: str) -> None:
    """Open the page in a large window: tasks are only requested while the timeline is visible."""
    browser.set_viewport_size({"width": 1280, "height": 5000})
    browser.goto(link)


def nodes_of(link: str, interval: str = "start=0&end=1e11") -> list[dict[str, Any]]:
    address, token = link.split("#")
    nodes: list[dict[str, Any]] = json.loads(get(f"{address}tasks?{interval}", token))
    return nodes


def counted(nodes: list[dict[str, Any]]) -> dict[tuple[str, bool], int]:
    found: dict[tuple[str, bool], int] = {}
    for node in nodes:
        for _, _, _, name, failed in node["tasks"]:
            found[name, failed] = found.get((name, failed), 0) + 1
    return found


def until_counted(link: str, expected: dict[tuple[str, bool], int], timeout: float = 30) -> None:
    """Wait until the server has these tasks, by name and failure."""
    deadline = time.monotonic() + timeout
    while counted(nodes := nodes_of(link)) != expected:
        assert time.monotonic() < deadline, nodes
        time.sleep(0.05)


def test_the_server_returns_the_tasks_of_an_interval(link: str) -> None:
    until_counted(link, DONE)
    (node,) = nodes_of(link)
    assert (node["node"], node["count"], node["known_since"], node["lost"]) == (0, 6, 0, 0)
    address, token = link.split("#")
    lives = {life["pid"]: life for life in json.loads(get(f"{address}lifetimes", token))}
    for pid, start, end, _, _ in node["tasks"]:
        assert lives[pid]["name"] != "head"
        assert lives[pid]["started"] < start < end  # the same clock
    first = min(task[2] for task in node["tasks"])
    (before,) = nodes_of(link, f"start=0&end={first}")
    assert [task[2] for task in before["tasks"]] == [first]
    (after,) = nodes_of(link, "start=1e10&end=1e11")
    assert (after["tasks"], after["count"]) == ([], 0)


def test_a_task_is_returned_while_it_runs_and_as_failed_if_its_worker_is_killed(
    site: Site, wait_until: WaitUntil, tmp_path: Path
) -> None:
    def told() -> list[tuple[str, bool, bool]]:
        return sorted((name, end is None, failed) for _, _, end, name, failed in nodes_of(link)[0]["tasks"])

    ends = tmp_path / "ends", tmp_path / "killed"
    with serving(site, "told", "--dashboard", "-T", "5", site.write(RUNNING), *ends) as link:
        wait_until(lambda: told() == [("be_killed", True, False), ("wait_for_a_file", True, False)])
        ends[1].touch()
        wait_until(lambda: told() == [("be_killed", False, True), ("wait_for_a_file", True, False)])
        ends[0].touch()
        wait_until(lambda: told() == [("be_killed", False, True), ("wait_for_a_file", False, False)])


def test_the_timeline_shows_a_task_that_still_runs(site: Site, browser: Any, tmp_path: Path) -> None:
    ends = tmp_path / "ends", tmp_path / "killed"
    with serving(site, "told", "--dashboard", "-T", "5", site.write(RUNNING), *ends) as link:
        try:
            show(browser, link)
            browser.locator("#timeline[data-tasks='2']").wait_for()
            browser.evaluate(FREEZE)
            assert browser.locator("#tasks").inner_text() == "2 tasks; 2 still run."
            place = browser.evaluate(PLACES)[0]
            browser.locator("#timeline canvas").hover(position={"x": place["x"], "y": place["y"]})
            name, outcome, times, where = browser.locator("#tip").inner_text().splitlines()
            assert name in ("wait_for_a_file", "be_killed")
            assert outcome == "a task that still runs"
            assert " to " not in times
            assert where.startswith("in pool_worker_")
        finally:
            for end in ends:
                end.touch()


def test_a_run_at_level_5_is_traced_before_its_agent_has_started(site: Site) -> None:
    code = """
        from dragon import _core
        from dragon.native.queue import Queue

        queue = Queue(0)
        print(_core.tracing())
    """
    for level, traced in (("5", "True"), ("4", "False")):
        done = site.python(code, env={"DRAGON_TELEMETRY_LEVEL": level})
        assert (done.stdout, done.stderr) == (f"{traced}\n", "")


def test_each_node_returns_the_tasks_of_its_processes(site: Site) -> None:
    with run(site, "-T", "5", "--nodes", "2", words=("node-1",)) as link:
        until_counted(link, DONE)
        (there,) = [node for node in nodes_of(link) if node["node"] == 1]
        assert {"square", "divide"} <= {task[3] for task in there["tasks"]}


def test_the_timeline_shows_tasks_in_the_rows_of_their_workers(link: str, browser: Any, wait_until: WaitUntil) -> None:
    show(browser, link)
    browser.locator("#timeline[data-tasks='6']").wait_for()
    assert browser.locator("#tasks").inner_text() == "6 tasks."
    assert browser.locator(".figures > .task").is_visible()
    browser.evaluate(FREEZE)
    places = browser.evaluate(PLACES)
    told = {}
    for place in places:
        browser.locator("#timeline canvas").hover(position={"x": place["x"], "y": place["y"]})
        name, outcome, times, where = browser.locator("#tip").inner_text().splitlines()
        told[name, outcome] = times, where
        assert place["colour"] == browser.evaluate(f"colour('var(--{'failed' if 'failed' in outcome else 'task'})')")
    assert {(name, "failed" in outcome) for name, outcome in told} == set(DONE)
    times, where = told["divide", "a task that failed"]
    assert times.endswith(" ms")
    assert where.startswith(("in pool_worker_", "in batch_worker_"))


def test_the_page_requests_the_tasks_of_the_shown_interval(link: str, browser: Any) -> None:
    show(browser, link)
    browser.locator("#timeline[data-tasks='6']").wait_for()
    asked: list[str] = []
    browser.on("request", lambda request: asked.append(request.url))
    browser.evaluate("page.timeline.zoom({ from: page.run.now - 0.01, to: page.run.now })")
    start = browser.evaluate("page.timeline.shown.from")
    browser.locator("#timeline[data-tasks='0']").wait_for()
    assert browser.locator("#tasks").inner_text() == "No task of a pool or a batch ran in this interval."
    assert any(f"tasks?start={start!r}&" in url for url in asked)


def test_the_page_says_how_to_record_tasks_below_level_5(site: Site, browser: Any) -> None:
    with run(site, "-T", "4") as link:
        assert nodes_of(link) == []
        asked: list[str] = []
        browser.on("request", lambda request: asked.append(request.url))
        show(browser, link)
        note = browser.locator("#tasks", has_text="dragon -T 5")
        note.wait_for()
        assert "recorded at level 5: dragon -T 5, or DRAGON_TELEMETRY_LEVEL=5" in note.inner_text()
        assert not browser.locator(".figures > .task").is_visible()
        assert not any("tasks?" in url for url in asked)
        untraced = browser.evaluate(
            "async () => { const tasks = new Tasks({ tasks: async () => [] }); "
            "await tasks.look({ level: 5 }, [], 0, 1); return tasks.note; }"
        )
        assert "the log of the run says why" in untraced


def span(start: float, length: float, failed: bool = False) -> Span:
    return Span(start, start + length, 7, 7, "task", "f", failed=failed)


def test_the_failed_and_the_longest_of_too_many_tasks_are_returned() -> None:
    tasks = RecentTasks(0)
    for number in range(1000):
        tasks.add(span(number, 0.001 * (number + 1), failed=number == 3))
    told = tasks.between(0, 2000, 100)
    assert told.count == 1000
    assert [task.failed for task in told.tasks].count(True) == 1
    assert {task.start for task in told.tasks} == {3, *range(901, 1000)}


def test_the_oldest_tasks_are_removed_if_there_are_too_many() -> None:
    tasks = RecentTasks(0)
    for number in range(16_384 + 10):
        tasks.add(span(number, 0.5))
    told = tasks.between(0, 1e9, 5)
    assert (told.count, told.known_since) == (16_384, 9.5)


def test_a_task_is_encoded_as_one_number_for_the_core() -> None:
    for number, failed in (0, False), (0, True), (12, True):
        assert task_of(task_word(number, failed)) == (number, failed)


# Let the page ask no more, so that nothing on it moves.
FREEZE = """async () => {
  Object.defineProperty(document, "hidden", { value: true });
  while (page.busy) await new Promise((resume) => setTimeout(resume, 10));
  await new Promise((resume) => requestAnimationFrame(() => requestAnimationFrame(resume)));
}"""
# Where a task of each kind is drawn on the canvas, and in which colour.
PLACES = """() => {
  const { timeline } = page;
  const pen = timeline.canvas.getContext("2d");
  return timeline.lanes.flatMap((lane, i) => (timeline.tasks.get(lane.puid) ?? []).map((task) => {
    const x = Math.floor((timeline.across(task.start) + timeline.across(task.end)) / 2);
    const y = AXIS + i * LANE + LANE / 2 - timeline.box.scrollTop;
    const [r, g, b] = pen.getImageData(x, y, 1, 1).data;
    return { x, y, colour: `rgb(${r}, ${g}, ${b})` };
  }));
}"""
