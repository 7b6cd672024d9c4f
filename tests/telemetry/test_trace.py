"""`dragon trace`: converts a recorded run for Perfetto."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from typing import Any

import pytest

from conftest import Site
from dragon.cli.trace import trace_events
from dragon.infrastructure.metrics import Lifetime, Span

PROGRAM = """
import multiprocessing as mp
import sys
import time
import dragon
from dragon.infrastructure.policy import Policy
from dragon.native.lock import Lock
from dragon.native.process import Process

def square(number):
    time.sleep(0.002)
    return number * number

def produce(queue, lock, event):
    event.wait()
    with lock:
        queue.put("here")

if __name__ == "__main__":
    mp.set_start_method("dragon")
    queue, lock, event = mp.Queue(), Lock(), mp.Event()
    there = Policy(placement=Policy.Placement.HOST_NAME, host_name=sys.argv[1]) if sys.argv[1:] else None
    producer = Process(produce, (queue, lock, event), ident="producer", policy=there)
    producer.start()
    lock.acquire()
    event.set()
    time.sleep(0.1)
    lock.release()
    queue.get()
    producer.join()
    with mp.Pool(2) as pool:
        pool.map(square, range(8), chunksize=2)
"""


def traced(site: Site, *words: str, options: Iterable[str] = ()) -> list[dict[str, Any]]:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    done = site.dragon("--telemetry", "runs", "-T", "5", *options, site.write(PROGRAM), *words)
    assert (done.returncode, done.stderr) == (0, "")
    told = site.dragon("trace", "runs")
    assert (told.returncode, told.stderr) == (0, "")
    path = site.folder / told.stdout.strip()
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return events


def names(events: list[dict[str, Any]], what: str) -> list[str]:
    return [event["name"] for event in events if event.get("cat") == what]


def test_a_trace_has_processes_waits_and_tasks(site: Site) -> None:
    events = traced(site)
    assert {"head", "producer"} < set(names(events, "process"))
    assert names(events, "task") == ["square"] * 4
    assert any(name.startswith("gets from Channel") for name in names(events, "get"))
    (acquired,) = [event for event in events if event.get("cat") == "acquire"]
    assert 10_000 < acquired["dur"] < 60e6
    (producer,) = [event for event in events if event["name"] == "producer"]
    assert acquired["pid"] == producer["pid"]
    assert producer["ts"] <= acquired["ts"] < acquired["ts"] + acquired["dur"] < producer["ts"] + producer["dur"]


def test_a_trace_of_several_nodes_has_arrows_for_their_messages(site: Site) -> None:
    events = traced(site, "node-1", options=["--nodes", "2"])
    sent = {event["id"] for event in events if event["ph"] == "s"}
    received = {event["id"] for event in events if event["ph"] == "f"}
    assert sent
    assert sent == received
    assert any(name.endswith("bytes to node-0") for name in names(events, "send"))
    assert "waits for Lock.acquire on node-0" in names(events, "wait")


def test_a_message_says_how_to_record_waits_if_there_are_none(site: Site) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    assert site.dragon("--telemetry", "runs", site.write("pass")).returncode == 0
    done = site.dragon("trace", "runs", "-o", "t.json")
    assert done.stdout == "t.json\n"
    assert "record with -T 5" in done.stderr
    assert names(json.loads((site.folder / "t.json").read_text())["traceEvents"], "process") == ["head"]


def test_a_missing_folder_is_an_error(site: Site) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    done = site.dragon("trace", "nowhere")
    assert (done.returncode, done.stderr) == (1, "dragon trace: there is no folder nowhere\n")


def test_a_reused_process_id_is_another_process() -> None:
    lives = [
        Lifetime(0, "a", 1, 77, "first", 0, 0, 10.0, 11.0, 0),
        Lifetime(0, "a", 2, 77, "second", 0, 0, 12.0, 13.0, 0),
    ]
    spans = [("a", Span(start, start + 0.5, 77, 5, "get", "Channel 0x1")) for start in (10.2, 12.2)]
    events = trace_events(lives, spans, 10.0, 13.0)
    first, second = (event["pid"] for event in events if event.get("cat") == "process")
    assert [event["pid"] for event in events if event.get("cat") == "get"] == [first, second]


def test_a_process_begins_before_its_first_event_even_if_its_start_is_recorded_later() -> None:
    lives = [
        Lifetime(0, "a", 1, 77, "first", 0, 0, 10.0, 11.0, 0),
        Lifetime(0, "a", 2, 77, "second", 0, 0, 12.5, 14.0, 0),
    ]
    spans = [("a", Span(began, began + 0.25, 77, 5, "get", "Channel 0x1")) for began in (12.0, 13.0)]
    events = trace_events(lives, spans, 10.0, 14.0)
    first, second = (event for event in events if event.get("cat") == "process")
    assert (first["ts"], first["dur"]) == (0.0, 1e6)
    assert (second["ts"], second["dur"]) == (2e6, 2e6)
    assert [event["pid"] for event in events if event.get("cat") == "get"] == [second["pid"]] * 2


def test_a_task_that_failed_is_marked() -> None:
    lives = [Lifetime(0, "a", 1, 77, "worker", 0, 0, 10.0, 12.0, 0)]
    spans = [("a", Span(began, began + 0.5, 77, 5, "task", "f", failed=began > 11)) for began in (10.2, 11.2)]
    fine, wrong = (event for event in trace_events(lives, spans, 10.0, 12.0) if event.get("cat") == "task")
    assert "args" not in fine
    assert wrong["args"] == {"failed": True}


def test_an_unknown_process_has_a_separate_track() -> None:
    events = trace_events([], [("a", Span(10.0, 10.5, 99, 1, "task", "f"))], 10.0, 11.0)
    assert events[0]["args"] == {"name": "a: pid 99"}
