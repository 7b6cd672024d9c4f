"""Prometheus' own server, which scrapes a run."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["PrometheusServer", "prometheus_server"]

_CONFIGURATION = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}
scrape_configs: [{{job_name: dragon, static_configs: [{{targets: ["{target}"]}}]}}]
"""


class PrometheusServer:
    """A server with its data in a folder of its own, which runs until it is closed."""

    def __init__(self, folder: Path, target: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        (folder / "prometheus.yml").write_text(_CONFIGURATION.format(target=target))
        self._url = f"http://{address}"
        options = {"config.file": "prometheus.yml", "storage.tsdb.path": "data", "web.listen-address": address}
        with (folder / "prometheus.log").open("w") as log:
            self._process = subprocess.Popen(
                ["prometheus", *(f"--{name}={value}" for name, value in options.items())],
                cwd=folder,
                stdout=log,
                stderr=log,
            )

    def is_ready(self) -> bool:
        """Return whether the server answers requests."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=30):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except urllib.error.URLError:
            return False

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> dict[str, float]:
        """Return the current values of an expression, by host."""
        found = self._get("query", query=expression)["result"]
        return {each["metric"].get("host", ""): float(each["value"][1]) for each in found}

    def types(self) -> dict[str, str]:
        """Return the types of all metrics."""
        return {name: told[0]["type"] for name, told in self._get("metadata").items()}

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


@pytest.fixture
def prometheus_server(
    tmp_path: Path, wait_until: Callable[[Callable[[], object]], None]
) -> Iterator[Callable[[str], PrometheusServer]]:
    """Provide a function that starts a server that scrapes an address."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    servers = []

    def start(target: str) -> PrometheusServer:
        servers.append(PrometheusServer(tmp_path, target))
        wait_until(servers[-1].is_ready)
        return servers[-1]

    yield start
    for server in servers:
        server.close()
