"""The page that shows a run, in a browser and to whoever asks without one."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from served import serving

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
WaitUntil = Callable[[Callable[[], object]], None]
Start = Callable[..., str]


@pytest.fixture
def start(site: Site) -> Iterator[Start]:
    """Start a run of the program with the dashboard; where that is."""
    with ExitStack() as runs:

        def begin(*options: str, hosts: tuple[str, ...] = ()) -> str:
            words = ["--dashboard", *options, site.write(PROGRAM), *hosts]
            return runs.enter_context(serving(site, "told", *words))

        yield begin


@pytest.mark.parametrize("options", [(), ("--nodes", "2")], ids=["one node", "two nodes"])
def test_the_page_shows_the_nodes_the_programs_metrics_and_the_processes(
    start: Start, browser: Any, options: tuple[str, ...]
) -> None:
    browser.goto(start(*options, hosts=("node-0", "node-1") if options else ()))
    for title in ("CPU", "Memory", "Processes of the run", "loss"):
        browser.locator(".chart:visible h3", has_text=re.compile(f"^{title}$")).wait_for()
    failed = browser.locator("#processes tr", has_text="failing <b>")
    assert failed.locator(".failed").inner_text() == "exit code 3"
    assert browser.locator("#timeline rect.failed").count() == 1
    assert ("2 nodes" if options else "1 node") in browser.locator("#facts").inner_text()


def test_the_page_shows_what_a_process_last_wrote(start: Start, browser: Any) -> None:
    browser.goto(start("--nodes", "2", hosts=("node-1",)))
    browser.locator("#processes tr", has_text="failing <b>").click()
    browser.locator("#processes pre", has_text="this went wrong").wait_for()


def test_the_page_shows_one_node_alone_and_finds_processes(start: Start, browser: Any) -> None:
    browser.goto(start("--nodes", "2", hosts=("node-1",)))
    rows = browser.locator("#processes tbody tr")
    browser.locator("#processes tr", has_text="failing <b>").wait_for()
    browser.select_option("#node", "node-0")
    assert rows.all_inner_texts()[0].startswith("head")
    assert rows.count() == 1
    browser.select_option("#node", "")
    browser.fill("#filter", "failing")
    assert rows.count() == 1


def test_the_page_says_when_the_run_is_over(site: Site, browser: Any) -> None:
    process = site.start(*dragon("--dashboard", site.write("import sys; sys.stdin.read()")), stdin=subprocess.PIPE)
    assert process.stderr is not None
    browser.goto(process.stderr.readline().split()[-1])
    browser.locator("#processes td", has_text="head").first.wait_for()
    process.communicate(timeout=60)
    browser.locator("#trouble", has_text="The run is over").wait_for()


def test_the_page_asks_nobody_else(start: Start, browser: Any) -> None:
    asked: list[str] = []
    browser.on("request", lambda request: asked.append(request.url))
    link = start()
    browser.goto(link)
    browser.locator("#processes td", has_text="head").first.wait_for()
    assert {url.rsplit("/", 1)[0] for url in asked} == {link.rsplit("/", 1)[0]}


def test_data_needs_the_token_of_the_link(start: Start) -> None:
    address, token = start().split("#")
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(f"{address}run", timeout=30)
    refused.value.close()
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        _get(f"{address}run", token + "x")
    refused.value.close()
    assert json.loads(_get(f"{address}run", token))["hosts"]


@pytest.mark.parametrize("question", ["query?since=soon", "query?interval=-1", "lifetimes?since=inf", "output?puid=x"])
def test_a_question_that_makes_no_sense_is_refused(start: Start, question: str) -> None:
    address, token = start().split("#")
    with pytest.raises(urllib.error.HTTPError, match="400") as refused:
        _get(address + question, token)
    refused.value.close()


def test_a_question_about_intervals_of_any_length_is_answered(start: Start, wait_until: WaitUntil) -> None:
    address, token = start().split("#")

    def records(interval: str) -> list[dict[str, Any]]:
        names = ",".join(json.loads(_get(f"{address}run", token))["names"])
        found: list[dict[str, Any]] = json.loads(_get(f"{address}query?metrics={names}&interval={interval}", token))[
            "records"
        ]
        return found

    wait_until(lambda: records("0"))
    for interval in ("1e-300", "5e-324", "1e308"):
        assert records(interval)


def test_who_asks_gets_an_answer_though_many_others_are_connected_and_say_nothing(start: Start) -> None:
    address, token = start().split("#")
    port = int(address.split("/")[2].rpartition(":")[2])
    strangers = [socket.socket() for _ in range(600)]
    for stranger in strangers:
        stranger.setblocking(False)
        stranger.connect_ex(("127.0.0.1", port))
    assert json.loads(_get(f"{address}run", token))["hosts"]
    for stranger in strangers:
        stranger.close()


def test_an_address_that_is_none_is_refused(start: Start) -> None:
    port = int(start().split("/")[2].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"GET //[ HTTP/1.1\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_a_run_that_measures_nothing_does_while_somebody_looks(site: Site, wait_until: WaitUntil) -> None:
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


def test_a_run_that_there_is_not_is_told(site: Site) -> None:
    done = site.dragon("dashboard", "none")
    assert done.returncode == 1
    assert done.stderr.startswith("dragon dashboard: you have no run 'none' on this machine")


def _get(address: str, token: str) -> str:
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())
