"""The metrics of a run that an OpenTelemetry collector receives."""

from __future__ import annotations

import gzip
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from conftest import Site
from peers import dragon

service = pytest.importorskip(
    "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", reason="OpenTelemetry's exporter is not installed"
)

PROGRAM = """
import sys
from dragon.telemetry import Telemetry

telemetry = Telemetry()
telemetry.add_data("loss", 0.25, tags={"model": "small"})
telemetry.counter("images").add(7)
with telemetry.timer("step"):
    print(telemetry.level, flush=True)
sys.stdin.read()
"""


class Collector:
    """A collector at `address` that keeps all requests with their paths."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, Any]] = []
        self.came = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
                collector.taken.append((self.path, service.ExportMetricsServiceRequest.FromString(body)))
                collector.came.set()
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector that runs until the end of the test."""
    made = Collector()
    yield made
    made.close()


@pytest.mark.parametrize("options", [(), ("--nodes", "2")], ids=["one node", "two nodes"])
def test_a_collector_receives_the_metrics_of_all_nodes(
    site: Site, collector: Collector, options: tuple[str, ...]
) -> None:
    process = site.start(*dragon("--otlp", collector.address, *options, site.write(PROGRAM)), stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "2\n"
    assert collector.came.wait(60)
    process.communicate(timeout=60)
    path, request = collector.taken[0]
    assert path == "/v1/metrics"
    metrics = {metric.name: metric for metric in request.resource_metrics[0].scope_metrics[0].metrics}
    (loss,) = metrics["loss"].gauge.data_points
    assert loss.as_double == 0.25
    assert {each.key: each.value.string_value for each in loss.attributes}["model"] == "small"
    assert metrics["images"].sum.is_monotonic
    assert metrics["images"].sum.data_points[0].as_double == 7
    assert metrics["step_seconds_count"].sum.data_points[0].as_double == 1
    assert metrics["dragon_node_memory_used_bytes"].unit == "By"
    assert len(metrics["dragon_node_memory_used_bytes"].gauge.data_points) == (2 if options else 1)


def test_a_missing_collector_does_not_affect_the_program(site: Site) -> None:
    done = site.dragon("--otlp", "http://127.0.0.1:9", site.write("print('well')"))
    assert (done.returncode, done.stdout) == (0, "well\n")


def test_an_invalid_address_is_refused(site: Site) -> None:
    done = site.dragon("--otlp", "collector:4318", site.write("print('well')"))
    assert done.returncode == 2
    assert "http://HOST:4318" in done.stderr
