"""The dashboard of a run, in a browser and with requests of a program."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from served import get, serving

from conftest import Site
from peers import dragon

PROGRAM = """
import sys
from dragon.infrastructure.policy import Policy
from dragon.native.process import Process
from dragon.telemetry import Telemetry

def fail():
    print("this went wrong", flush=True)
    sys.exit(3)

if __name__ == "__main__":
    hosts = sys.argv[1:]
    there = Policy(placement=Policy.Placement.HOST_NAME, host_name=hosts[-1]) if hosts else None
    failing = Process(fail, ident="failing <b>", policy=there)
    failing.start()
    failing.join()
    telemetry = Telemetry()
    telemetry.add_data("loss", 0.25, tags={"model": "<small>"})
    print("told", flush=True)
    sys.stdin.read()
"""
STILL = """
import os, signal, sys, time
from dragon.infrastructure.policy import Policy
from dragon.native import Lock, Process

def fail():
    print("this <b>went</b> wrong", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def wait(lock):
    with lock:
        pass

def start(name, node, function, *given):
    place = Policy(placement=Policy.Placement.HOST_NAME, host_name=f"node-{node}")
    process = Process(function, given, ident=name, policy=place)
    process.start()
    return process

if __name__ == "__main__":
    lock = Lock()
    lock.acquire()
    start("failing <img src=x>", 1, fail).join()
    stopped = start("stopped", 0, time.sleep, 1000)
    stopped.terminate()
    stopped.join()
    waiting = [start("near <img src=x>", 0, wait, lock), start("far", 1, wait, lock)]
    print("told", flush=True)
    sys.stdin.read()
    lock.release()
    for process in waiting:
        process.join()
"""
RUN = {
    "now": 1000,
    "started": 0,
    "names": [],
    "metrics": {},
    "level": 4,
    "period": 1,
    "hosts": ["a", "b", "c"],
    "lost": {},
    "signals": {},
}
pytestmark = pytest.mark.xdist_group("dashboard")  # they share two runs
WaitUntil = Callable[[Callable[[], object]], None]
Start = Callable[..., str]


@pytest.fixture
def start(site: Site) -> Iterator[Start]:
    """Return a function that starts a run of the program with the dashboard and returns the link to it."""
    with ExitStack() as runs:

        def begin(*options: str, hosts: tuple[str, ...] = ()) -> str:
            words = ["--dashboard", *options, site.write(PROGRAM), *hosts]
            return runs.enter_context(serving(site, "told", *words))

        yield begin


@pytest.fixture(scope="module")
def link(shared_site: Site) -> Iterator[str]:
    """The link to the page of a run of one node."""
    with serving(shared_site, "told", "--dashboard", shared_site.write(PROGRAM, "plain.py")) as link:
        yield link


@pytest.mark.parametrize("options", [(), ("--nodes", "2")], ids=["one node", "two nodes"])
def test_the_page_shows_nodes_processes_and_the_metrics_of_the_program(
    start: Start, browser: Any, options: tuple[str, ...]
) -> None:
    browser.goto(start(*options, hosts=("node-0", "node-1") if options else ()))
    for title in ("CPU", "Memory", "Processes of the run", "loss"):
        browser.locator(".chart:visible h3", has_text=re.compile(f"^{title}$")).wait_for()
    failed = browser.locator("#processes tr", has_text="failing <b>")
    assert failed.locator(".failed").inner_text() == "exit code 3"
    browser.locator("#overview .failures li", has_text="failing <b>").wait_for()
    assert ("2 nodes" if options else "1 node") in browser.locator("#facts").inner_text()


def test_the_page_shows_the_last_output_of_a_process(start: Start, browser: Any) -> None:
    browser.goto(start("--nodes", "2", hosts=("node-1",)))
    browser.locator("#processes tr", has_text="failing <b>").click()
    browser.locator("#processes pre", has_text="this went wrong").wait_for()


def test_the_page_can_show_a_single_node_and_filter_processes(start: Start, browser: Any) -> None:
    browser.goto(start("--nodes", "2", hosts=("node-1",)))
    rows = browser.locator("#processes tbody tr")
    browser.locator("#processes tr", has_text="failing <b>").wait_for()
    browser.select_option("#node", "node-0")
    assert rows.all_inner_texts()[0].startswith("head")
    assert rows.count() == 1
    browser.select_option("#node", "")
    browser.fill("#filter", "failing")
    assert rows.count() == 1


def test_the_page_says_that_the_run_is_over(site: Site, browser: Any) -> None:
    process = site.start(*dragon("--dashboard", site.write("import sys; sys.stdin.read()")), stdin=subprocess.PIPE)
    assert process.stderr is not None
    browser.goto(process.stderr.readline().split()[-1])
    browser.locator("#processes td", has_text="head").first.wait_for()
    process.communicate(timeout=60)
    browser.locator("#trouble", has_text="The run is over").wait_for()


def test_the_page_sends_no_requests_to_other_servers(link: str, browser: Any) -> None:
    asked: list[str] = []
    browser.on("request", lambda request: asked.append(request.url))
    browser.goto(link)
    browser.locator("#processes td", has_text="head").first.wait_for()
    assert {url.rsplit("/", 1)[0] for url in asked} == {link.rsplit("/", 1)[0]}


def test_requests_for_data_require_the_token_of_the_link(link: str) -> None:
    address, token = link.split("#")
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(f"{address}run", timeout=30)
    refused.value.close()
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        get(f"{address}run", token + "x")
    refused.value.close()
    assert json.loads(get(f"{address}run", token))["hosts"]


@pytest.mark.parametrize("question", ["query?since=soon", "query?interval=-1", "lifetimes?since=inf", "output?puid=x"])
def test_an_invalid_query_is_refused(link: str, question: str) -> None:
    address, token = link.split("#")
    with pytest.raises(urllib.error.HTTPError, match="400") as refused:
        get(address + question, token)
    refused.value.close()


def test_a_query_with_any_interval_is_answered(link: str, wait_until: WaitUntil) -> None:
    address, token = link.split("#")

    def records(interval: str) -> list[dict[str, Any]]:
        names = ",".join(json.loads(get(f"{address}run", token))["names"])
        found: list[dict[str, Any]] = json.loads(get(f"{address}query?metrics={names}&interval={interval}", token))[
            "records"
        ]
        return found

    wait_until(lambda: records("0"))
    for interval in ("1e-300", "5e-324", "1e308"):
        assert records(interval)


def test_a_request_is_answered_despite_many_silent_connections(link: str) -> None:
    address, token = link.split("#")
    port = int(address.split("/")[2].rpartition(":")[2])
    strangers = [socket.socket() for _ in range(600)]
    for stranger in strangers:
        stranger.setblocking(False)
        stranger.connect_ex(("127.0.0.1", port))
    assert json.loads(get(f"{address}run", token))["hosts"]
    for stranger in strangers:
        stranger.close()


def test_an_invalid_address_is_refused(link: str) -> None:
    port = int(link.split("/")[2].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"GET //[ HTTP/1.1\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_a_run_without_telemetry_is_measured_while_the_dashboard_is_open(site: Site, wait_until: WaitUntil) -> None:
    program = site.start(
        *dragon(
            site.write(
                """
                import sys
                from dragon.telemetry import Telemetry
                for _ in sys.stdin:
                    print(Telemetry().level, flush=True)
                """
            )
        ),
        stdin=subprocess.PIPE,
    )
    assert program.stdin is not None
    assert program.stdout is not None

    def level() -> str:
        program.stdin.write("\n")
        program.stdin.flush()
        return str(program.stdout.readline())

    assert level() == "0\n"
    looking = site.start(*dragon("dashboard", str(program.pid)))
    assert looking.stdout is not None
    assert "#" in looking.stdout.readline()
    assert level() == "4\n"
    looking.terminate()
    assert looking.communicate(timeout=60) == ("", "")
    assert level() == "0\n"
    program.communicate(timeout=60)


def test_an_unknown_run_is_an_error(site: Site) -> None:
    done = site.dragon("dashboard", "none")
    assert done.returncode == 1
    assert done.stderr.startswith("dragon dashboard: you have no run 'none' on this machine")


@pytest.fixture(scope="module")
def still(shared_site: Site) -> Iterator[str]:
    """The link to the page of a run over two nodes; one process has failed, and two wait for a lock of the program."""
    with serving(shared_site, "told", "--nodes", "2", "--dashboard", shared_site.write(STILL)) as link:
        yield link


def test_the_overview_shows_failed_processes_and_their_last_output(still: str, browser: Any) -> None:
    browser.goto(still)
    failure = browser.locator("#overview .failures li")
    failure.locator("pre").wait_for()
    text = failure.inner_text()
    assert "failing <img src=x>" in text
    assert "on node-1: killed by signal SIGKILL" in text
    assert failure.locator("pre").inner_text() == "this <b>went</b> wrong"
    figures = browser.locator("#overview .figures").inner_text()
    assert re.findall(r"(\d+) (\w+)", figures) == [("3", "running"), ("1", "ended"), ("1", "failed")]
    stopped = browser.locator("#processes tr", has_text="stopped")
    assert "terminated by SIGTERM" in stopped.inner_text()


def test_the_overview_shows_waiting_processes_and_the_holder_of_the_lock(still: str, browser: Any) -> None:
    browser.goto(still)
    waits = browser.locator("#overview .waiting li", has_text="near <img src=x>")
    waits.get_by_text("have waited").wait_for()
    text = waits.inner_text()
    assert {"near <img src=x>", "far"} == set(text.partition(" have waited ")[0].split(", "))
    assert re.search(r"\d s to acquire the lock made at [a-z_]+[.]py:[0-9]+, held by head \(pid \d+\) on node-0$", text)


def test_names_and_output_are_shown_as_text_and_not_as_html(still: str, browser: Any) -> None:
    browser.goto(still)
    browser.locator("#overview .failures pre").wait_for()
    browser.locator("#overview .waiting li").first.wait_for()
    _hover(browser, "failing <img src=x>")
    for place in ("#overview", "#processes", "#tip"):
        assert "<img src=x>" in browser.locator(place).inner_text()
    assert browser.locator("img").count() == 0
    assert browser.locator("#overview pre b").count() == 0


def test_a_wait_is_reported_only_by_the_node_of_its_object(still: str, wait_until: WaitUntil) -> None:
    address, token = still.split("#")
    told: list[list[tuple[int, int]]] = []

    def both_wait() -> bool:
        nodes = json.loads(get(f"{address}waits", token))
        told[:] = [[(one["node"], one["count"]) for one in node["objects"]] for node in nodes]
        return sum(count for objects in told for _, count in objects) == 2

    wait_until(both_wait)
    assert told == [[(0, 2)], []]


def test_the_timeline_has_a_bar_for_each_process(still: str, browser: Any) -> None:
    browser.goto(still)
    timeline = browser.locator("#timeline[data-lanes='7']")  # two nodes and five processes
    timeline.wait_for()
    seen = [_tip(browser, lane) for lane in range(7)]
    assert [tip is None for tip in seen] == [True, False, False, False, True, False, False]
    names = [tip.splitlines()[0] for tip in seen if tip]
    assert names == ["head", "stopped", "near <img src=x>", "failing <img src=x>", "far"]
    failed = seen[5]
    assert failed is not None
    assert "killed by signal SIGKILL" in failed
    assert re.search(r"puid \d+, pid \d+, node-1", failed)
    browser.select_option("#lanes", "failed")
    browser.locator("#timeline[data-lanes='2']").wait_for()
    red = browser.evaluate("colour('var(--failed)')")
    drawn = browser.evaluate(_COLOURS_OF_BARS)
    assert drawn == [red]


def test_the_wheel_and_dragging_zoom_and_a_double_click_shows_the_whole_run(
    still: str, browser: Any, wait_until: WaitUntil
) -> None:
    browser.goto(still)
    browser.locator("#timeline[data-lanes='7']").wait_for()
    canvas = browser.locator("#timeline canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    middle = box["y"] + box["height"] / 2
    begin, end = _interval(browser)
    browser.mouse.move(box["x"] + 0.6 * box["width"], middle)
    browser.mouse.wheel(0, -300)
    browser.locator("#whole").wait_for()
    first = _interval(browser)
    assert begin < first[0] < first[1] < end
    browser.mouse.move(box["x"] + 0.5 * box["width"], middle)
    browser.mouse.down()
    browser.mouse.move(box["x"] + 0.7 * box["width"], middle, steps=3)
    browser.mouse.up()
    wait_until(lambda: _interval(browser)[0] > first[0])
    second = _interval(browser)
    assert first[0] < second[0] < second[1] < first[1]
    canvas.dblclick()
    browser.locator("#whole").wait_for(state="hidden")
    assert _interval(browser)[0] == begin


@pytest.mark.parametrize(
    ("cpu", "waiting", "title", "text"),
    [
        (0, 2, "No progress for 5 min 0 s", "All 2 processes wait;"),
        (0, 1, "Nothing has changed for 5 min 0 s", "1 of 2 processes wait in the runtime, and none uses a CPU;"),
        (150, 1, "Computing", "Its processes use 150 % of a CPU;"),
    ],
)
def test_the_overview_says_whether_a_run_without_progress_computes_or_waits(
    still: str, browser: Any, cpu: int, waiting: int, title: str, text: str
) -> None:
    browser.goto(still)
    rows = [{"look": "live", "started": started, "ended": None, "cpu": cpu / 2} for started in (0, 700)]
    waits = [{"processes": waiting, "seconds": 250, "objects": []}]
    counted = ["queue_gets", {"host": "a"}, [600, 700, 800], [5, 7, 7]]
    told = browser.evaluate(
        "([run, rows, waits, record]) => { const store = new Store(); store.add([record]); "
        "return standing(run, rows, store, waits); }",
        [RUN, rows, waits, counted],
    )
    assert told["title"] == title
    assert told["text"].startswith(text)


def test_messages_and_tasks_of_the_last_seconds_count_as_progress(still: str, browser: Any) -> None:
    browser.goto(still)
    counted = [
        ["queue_gets", {"host": "a"}, [980, 991, 1000], [5, 7, 9]],
        ["pool_tasks_done", {"host": "b"}, [980, 991, 1000], [0, 0, 1000]],
    ]
    told = browser.evaluate(
        "([run, records]) => { const store = new Store(); store.add(records); return standing(run, [], store, []); }",
        [RUN, counted],
    )
    assert told["title"] == "Making progress"
    assert told["text"] == "In the last 10 s: 4 messages taken from queues, 1,000 tasks of pools done."


def test_the_reasons_why_a_node_is_behind_are_shown(still: str, browser: Any) -> None:
    browser.goto(still)
    hosts = ["well", "idle", "busy", "full", "silent", "gone"]
    values = {
        "well": (90, 50, 1),
        "idle": (30, 50, 1),
        "busy": (95, 50, 1),
        "full": (90, 91, 95),
        "silent": (90, 50, 1),
    }
    records = [
        [metric, {"host": host}, [995, 1000], [value, value]]
        for host, three in values.items()
        for metric, value in zip(("cpu_percent", "used_RAM", "def_pool_utilization"), three, strict=True)
    ]
    told = browser.evaluate(
        "([run, records]) => { const store = new Store(); store.add(records); "
        "const heard = new Map(run.hosts.map((host) => [host, { at: host === 'silent' ? 990 : 999 }])); "
        "return nodesOf(run, store, heard).map((node) => [node.host, node.reasons]); }",
        [{**RUN, "hosts": hosts, "lost": {"5": "its agent died"}}, records],
    )
    assert dict(told) == {
        "well": [],
        "idle": ["CPUs 30 % busy, less than half of the nodes' median of 90 %"],
        "busy": [],
        "full": ["memory 91 % full", "shared memory of the run 95 % full"],
        "silent": ["no report for 10 s"],
        "gone": ["lost: its agent died"],
    }


# The colours in the column of the canvas where bars may be, but for what is behind them.
_COLOURS_OF_BARS = """() => {
  const canvas = document.querySelector("#timeline canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 40, canvas.width, 10);
  const count = new Map();
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] !== 255) continue;
    const colour = `rgb(${data[i]}, ${data[i + 1]}, ${data[i + 2]})`;
    count.set(colour, (count.get(colour) ?? 0) + 1);
  }
  const known = ["line", "raised", "quiet", "text", "ground"].map((name) => colour(`var(--${name})`));
  return [...count].filter(([colour, times]) => times >= 10 && !known.includes(colour)).map(([colour]) => colour);
}"""


def _interval(browser: Any) -> tuple[float, float]:
    """Return the interval of the timeline, in seconds since 1970."""
    data = browser.evaluate("({ ...document.getElementById('timeline').dataset })")
    return float(data["from"]), float(data["to"])


def _tip(browser: Any, lane: int) -> str | None:
    """Return the tooltip of a lane of the timeline, or None."""
    canvas = browser.locator("#timeline canvas")
    canvas.scroll_into_view_if_needed()
    width = canvas.bounding_box()["width"]
    canvas.hover(position={"x": width / 2, "y": 22 + 14 * lane + 7})
    tip = browser.locator("#tip")
    return str(tip.inner_text()) if tip.is_visible() else None


def _hover(browser: Any, name: str) -> None:
    """Move the mouse over the lane of a process."""
    browser.locator("#timeline[data-lanes='7']").wait_for()
    assert any(name in (_tip(browser, lane) or "") for lane in range(7))
