"""The page with the metrics of a run for Prometheus."""

from __future__ import annotations

import os
import re
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from served import serving

from conftest import Site

PROGRAM = """
import sys
from dragon.telemetry import Telemetry

if __name__ == "__main__":
    telemetry = Telemetry()
    telemetry.add_data("loss", 0.25, tags={"model": 'a "large"\\\\ one'})
    telemetry.add_data("loss", 0.5, tags={"model": "small"})
    telemetry.counter("images.read").add(7)
    telemetry.timer("step").__enter__().__exit__(None, None, None)
    print("told", flush=True)
    sys.stdin.read()
"""
pytestmark = pytest.mark.xdist_group("prometheus")  # they share a run
WaitUntil = Callable[[Callable[[], object]], None]
# Samples by name; each its labels and value.
Page = dict[str, list[tuple[dict[str, str], float]]]


@pytest.fixture(params=[[], ["--nodes", "2"]], ids=["one node", "two nodes"], scope="module")
def address(request: pytest.FixtureRequest, shared_site: Site) -> Iterator[str]:
    """The address at which a run serves its metrics."""
    words = [*request.param, "-T", "4", "--telemetry-port", "0", shared_site.write(PROGRAM)]
    with serving(shared_site, "told", *words, env={"DRAGON_TELEMETRY_PERIOD": "0.1"}) as link:
        yield link.removesuffix("/metrics")


def get(address: str) -> str:
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return str(answer.read().decode())


def parse(page: str) -> tuple[Page, dict[str, str]]:
    """Return the samples of a page and the types of its metrics, as Prometheus's library reads them."""
    parser = pytest.importorskip("prometheus_client.parser")
    samples: Page = {}
    types = {}
    for family in parser.text_string_to_metric_families(page):
        assert family.name not in types
        types[family.name] = family.type
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples, types


def test_prometheus_reads_the_metrics_of_the_run(address: str, wait_until: WaitUntil) -> None:
    wait_until(lambda: "dragon_process_cpu_ratio" in get(address))
    samples, types = parse(get(address))
    assert types["dragon_node_load1"] == "gauge"
    assert types["dragon_node_network_sent_bytes"] == "counter"
    assert all(0 <= value <= 1 for _, value in samples["dragon_node_memory_ratio"])
    ((labels, memory),) = samples["dragon_process_resident_memory_bytes"]
    assert set(labels) == {"host", "puid", "name"}
    assert memory > 2**20


def test_prometheus_reads_the_metrics_of_the_program(address: str) -> None:
    samples, types = parse(get(address))
    assert {(labels["model"], value) for labels, value in samples["loss"]} == {
        ('a "large"\\ one', 0.25),
        ("small", 0.5),
    }
    assert all({"host", "puid"} < set(labels) for labels, _ in samples["loss"])
    assert (types["images_read"], samples["images_read_total"][0][1]) == ("counter", 7)
    assert (types["step_seconds"], samples["step_seconds_count"][0][1]) == ("summary", 1)
    assert samples["step_seconds_sum"][0][1] > 0


def test_the_page_has_every_node_and_each_metric_once(address: str, wait_until: WaitUntil, shared_site: Site) -> None:
    nodes = 2 if "--nodes" in " ".join(line for _, line in shared_site.processes()) else 1
    wait_until(lambda: get(address).count("\ndragon_node_load1{") == nodes)
    page = get(address)
    assert page.count("# TYPE dragon_node_load1 gauge") == 1
    assert len(set(re.findall(r'dragon_node_load1{host="([^"]+)"}', page))) == nodes


def test_other_requests_are_refused(address: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as refused:
        urllib.request.urlopen(f"{address}/etc/passwd", timeout=30)
    refused.value.close()
    with pytest.raises(urllib.error.HTTPError, match="405") as refused:
        urllib.request.urlopen(f"{address}/metrics", data=b"x", timeout=30)
    refused.value.close()
    port = int(address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"x" * 2**17)
        try:
            assert connection.recv(1) == b""
        except ConnectionResetError:
            return  # it closed with some of that unread


def test_requests_with_another_host_name_are_refused(address: str) -> None:
    port = address.rpartition(":")[2]
    for host in (f"localhost:{port}", "LOCALHOST", f"[::1]:{port}", "127.0.0.1"):
        assert status(address, host) == 200
    for host in ("elsewhere.example", f"elsewhere.example:{port}", f"127.0.0.1.elsewhere.example:{port}"):
        assert status(address, host) == 421


def status(address: str, host: str) -> int:
    """Return the status of a request with this host name."""
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{address}/metrics", headers={"Host": host}), timeout=30):
            return 200
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize("nodes", [[], ["--nodes", "2"]], ids=["one node", "two nodes"])
def test_a_port_in_use_is_reported_and_the_program_runs(site: Site, nodes: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        program = site.write("from dragon.telemetry import Telemetry; print(Telemetry().level)")
        done = site.dragon(*nodes, "--telemetry-port", port, program)
    assert done.stdout == "2\n"
    assert "nothing is served" in done.stderr
    assert "--telemetry-port" in done.stderr


def test_a_token_keeps_the_page_from_others(site: Site) -> None:
    words = ["-T", "4", "--telemetry-port", "0", site.write(PROGRAM)]
    with serving(site, "told", *words, env={"DRAGON_TELEMETRY_TOKEN": "secret"}) as link:
        assert status(link.removesuffix("/metrics"), "127.0.0.1") == 401
        request = urllib.request.Request(link, headers={"Authorization": "Bearer secret"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert b"loss" in answer.read()


ASK = """
import encodings.idna, os, sys, urllib.error, urllib.request
os.setuid(int(sys.argv[1]))
try:
    print(urllib.request.urlopen(sys.argv[2], timeout=30).status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="takes root, to be another user")
def test_another_user_needs_a_token(address: str, site: Site) -> None:
    for user, told in ((0, "200"), (65534, "403 another user's program must send a token")):
        asked = site.run(sys.executable, "-c", ASK, str(user), f"{address}/metrics")
        assert asked.stdout.startswith(told), asked.stderr
