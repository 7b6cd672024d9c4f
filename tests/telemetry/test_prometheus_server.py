"""A Prometheus server, and its promtool, with a run of three nodes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from served import serving

from conftest import Site
from dragon.infrastructure.metrics import METRICS
from peers.prometheus import PrometheusServer

PROGRAM = """
import sys
from dragon.telemetry import Telemetry

if __name__ == "__main__":
    telemetry = Telemetry()
    telemetry.add_data("loss", 0.25, tags={"model": "small"})
    telemetry.counter("images.read").add(7)
    with telemetry.timer("step"):
        print(telemetry.level, flush=True)
    sys.stdin.read()
"""
NODES = ["node-0", "node-1", "node-2"]
WaitUntil = Callable[[Callable[[], object]], None]


@pytest.fixture
def address(site: Site) -> Iterator[str]:
    """The host and port at which a run of three nodes serves its metrics."""
    with serving(site, "4", "--nodes", "3", "-T", "4", "--telemetry-port", "0", site.write(PROGRAM)) as link:
        yield link.removeprefix("http://").removesuffix("/metrics")


def test_prometheus_has_the_values_of_the_kernel_and_of_the_runtime(
    address: str, prometheus_server: Callable[[str], PrometheusServer], wait_until: WaitUntil
) -> None:
    server = prometheus_server(address)
    wait_until(lambda: sorted(server.query("dragon_node_memory_used_bytes")) == NODES)
    used = psutil.virtual_memory().used
    for told in server.query("dragon_node_memory_used_bytes").values():
        assert told == pytest.approx(used, rel=0.2)
    sent = sum(each.bytes_sent for name, each in psutil.net_io_counters(pernic=True).items() if name != "lo")
    for told in server.query("dragon_node_network_sent_bytes_total").values():
        assert told == pytest.approx(sent, rel=0.05, abs=2**20)
    assert server.query("dragon_node_processes") == {"node-0": 1, "node-1": 0, "node-2": 0}
    assert server.query("loss") == {"node-0": 0.25}
    assert server.query("images_read_total") == {"node-0": 7}
    assert server.query("step_seconds_count") == {"node-0": 1}
    assert server.query("up") == {"": 1}


def test_prometheus_has_the_types_of_the_metrics(
    address: str, prometheus_server: Callable[[str], PrometheusServer], wait_until: WaitUntil
) -> None:
    server = prometheus_server(address)
    wait_until(lambda: server.query("dragon_process_resident_memory_bytes"))
    types = server.types()
    told = {metric.exported: str(metric.kind) for metric in METRICS.values() if metric.exported in types}
    assert len(told) > 10
    assert told == {name: kind for name, kind in types.items() if name.startswith("dragon_")}


def test_promtool_reports_no_errors(address: str, wait_until: WaitUntil) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")

    def page() -> bytes:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            return bytes(answer.read())

    wait_until(lambda: b"dragon_process_resident_memory_bytes" in page())
    checked = subprocess.run(["promtool", "check", "metrics"], input=page(), capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def dashboard() -> Any:
    return json.loads((Path(__file__).parents[2] / "docs" / "grafana.json").read_text())


def test_the_dashboard_for_grafana_has_exactly_the_metrics_of_the_runtime() -> None:
    expressions = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    named = [name for expression in expressions for name in re.findall(r"dragon_\w+", expression)]
    assert sorted(named) == sorted(metric.exported for metric in METRICS.values())


def test_prometheus_accepts_every_expression_of_the_dashboard(
    address: str, prometheus_server: Callable[[str], PrometheusServer], wait_until: WaitUntil
) -> None:
    server = prometheus_server(address)
    wait_until(lambda: server.query("dragon_node_load1"))
    panels = [panel for panel in dashboard()["panels"] if panel["type"] == "timeseries"]
    assert len(panels) == len(METRICS)
    for panel in panels:
        expression = panel["targets"][0]["expr"].replace("$host", ".*").replace("$__rate_interval", "1m")
        server.query(expression)  # an expression that is wrong is answered with an error
