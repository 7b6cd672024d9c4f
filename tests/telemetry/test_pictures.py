"""The pictures of the dashboard in the documents, compared with a run. UPDATE_PICTURES=1 makes new pictures."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from served import serving

from conftest import Site

DOCS = Path(__file__).parents[2] / "docs"
UPDATES = bool(os.environ.get("UPDATE_PICTURES"))
WaitUntil = Callable[[Callable[[], object]], None]
WIDTH, HEIGHT = 1400, 780
PROGRAM = """
import multiprocessing as mp
import os, select, sys, time
import dragon
from dragon.infrastructure.policy import Policy
from dragon.native import Lock, Process, Queue
from dragon.telemetry import Telemetry
from dragon.workflows.batch import Batch

def place(node):
    return Policy(placement=Policy.Placement.HOST_NAME, host_name=f"node-{node}")

def start(name, node, function, *given):
    process = Process(function, given, ident=name, policy=place(node))
    process.start()
    return process

def compute(seconds, part):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        until = time.perf_counter() + 0.05 * part
        while time.perf_counter() < until:
            pass
        time.sleep(0.05 * (1 - part))

def load(shard, batches):
    if shard == 3:
        print("shard-3.tar: no such file", flush=True)
        sys.exit(1)
    for number in range(10_000):
        if batches.full():
            time.sleep(0.02)
        batches.put((shard, number))
        time.sleep(0.05)

def train(model, batches, share):
    telemetry = Telemetry()
    images = telemetry.counter("images", model=model)
    for step in range(10_000):
        batches.get()
        compute(0.04, share)
        images.add(64)
        telemetry.add_data("loss", 2 / (1 + step / 8) + share / 4, tags={"model": model})

def checkpoint(lock):
    with lock:
        time.sleep(1000)

def publish(lock):
    with lock:
        pass

def evaluate(number):
    compute(0.3 + number % 4 / 8, 0.1)
    if number % 16 == 9:
        raise ValueError("no images of this class")

def transform(number):
    compute(0.1 + number % 3 / 10, 0.1)

if __name__ == "__main__":
    mp.set_start_method("dragon")
    batches, lock = Queue(maxsize=16), Lock()
    others = [start(f"load-{shard}", shard % 2, load, shard, batches) for shard in range(5)]
    for node, (model, share) in enumerate((("small", 0.05), ("medium", 0.15), ("large", 0.3))):
        others.append(start(f"train-{model}", node % 2, train, model, batches, share))
    end = time.monotonic() + float(os.environ["SECONDS"])
    told, number, tests, parts = False, 0, [], []
    with mp.Pool(4) as pool, Batch(workers_per_node=1) as batch:
        while not select.select([sys.stdin], [], [], 0.1)[0]:
            number += 1
            tests = [one for one in tests if not one.ready()]
            if len(tests) < 8:
                tests.append(pool.apply_async(evaluate, (number,)))
            if number % 2:
                parts.append(batch.function(transform, number))
            if number == 30:
                others.append(start("checkpoint", 0, checkpoint, lock))
            if number == 40:
                others += [start(f"publish-{rank}", rank % 2, publish, lock) for rank in range(3)]
            if number > 60 and time.monotonic() > end and not told:
                told = True
                print("told", flush=True)
        for one in tests:
            one.wait()
        for part in parts:
            part.get()
    for process in reversed(others):  # those that wait for a lock before the one that holds it
        process.kill()
    for process in others:
        process.join()
"""


@pytest.fixture(scope="module")
def link(shared_site: Site) -> Iterator[str]:
    """The link to the page of a run over two nodes with a failure, waits, and tasks of a pool and a batch."""
    shared_site.write(PROGRAM, "train.py")
    words = ("--nodes", "2", "-T", "5", "--dashboard", "train.py")
    with serving(shared_site, "told", *words, env={"SECONDS": "40" if UPDATES else "1"}) as link:
        yield link


@pytest.fixture
def page(link: str, browser: Any, wait_until: WaitUntil) -> Any:
    """The dashboard with all its data, in light colours."""
    browser.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    browser.emulate_media(color_scheme="light")
    browser.goto(link)
    browser.locator("#overview .failures pre").wait_for()
    browser.locator("#overview .waiting li").first.wait_for()
    timeline = browser.locator("#timeline")  # which the charts, as they appear, move down
    wait_until(lambda: timeline.scroll_into_view_if_needed() or browser.evaluate(FAILED_TASK))
    browser.evaluate("scrollTo(0, 0)")
    return browser


def test_the_picture_of_the_dashboard_has_the_size_and_content_of_the_page(page: Any) -> None:
    assert page.locator("#command").inner_text() == "python train.py"
    text = page.locator("body").inner_text()
    for words in ("2 nodes", "publish-0", "load-3", "shard-3.tar: no such file", "none behind"):
        assert words in text
    legend = page.locator(".chart", has=page.locator("h3", has_text=re.compile("^CPU$"))).inner_text()
    assert re.search(r"node-0\s*[\d.]+ %\s*node-1\s*[\d.]+ %", legend)  # the newest values, without the mouse
    keep(page.screenshot(), "dashboard.png", (WIDTH, HEIGHT))


def test_the_picture_of_the_timeline_has_the_size_and_content_of_the_page(page: Any) -> None:
    page.set_viewport_size({"width": WIDTH, "height": 1000})
    section = page.locator("section", has=page.locator("#timeline"))
    section.scroll_into_view_if_needed()
    row = page.evaluate(FAILED_TASK)
    page.locator("#timeline canvas").hover(position=row)
    tip = page.locator("#tip").inner_text()
    assert re.fullmatch(r"evaluate\na task that failed\n\S+ to \S+, \d+ ms\nin \S+, puid \d+, node-[01]", tip)
    assert re.fullmatch(r"\d+ tasks(; \d+ still runs?)?\.", page.locator("#tasks").inner_text())
    box = section.bounding_box()
    margin = 8
    clip = {"x": box["x"] - margin, "y": box["y"] - margin, "width": WIDTH - 2 * box["x"] + 2 * margin}
    clip["height"] = round(box["height"]) + 2 * margin
    keep(page.screenshot(clip=clip), "timeline.png", (int(clip["width"]), int(clip["height"])))


def keep(picture: bytes, name: str, size: tuple[int, int]) -> None:
    """Compare the size of a picture with that in the documents; write it there with UPDATE_PICTURES=1."""
    assert size_of(picture) == size
    if UPDATES:
        (DOCS / name).write_bytes(picture)
    assert size_of((DOCS / name).read_bytes())[0] == size[0]
    assert f"]({name})" in (DOCS / "telemetry.md").read_text()


def size_of(picture: bytes) -> tuple[int, int]:
    """Return the width and height of a PNG file."""
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


# Where a task that failed is drawn on the canvas.
FAILED_TASK = """() => {
  const { timeline } = page;
  for (const [i, lane] of timeline.lanes.entries()) {
    const task = timeline.tasks.get(lane.puid)?.find((task) => task.failed);
    if (task) return { x: timeline.across((task.start + task.end) / 2), y: AXIS + i * LANE + LANE / 2 };
  }
}"""
