"""The ways in which a program is run: with the standard library, and with Dragon."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["OURS", "STANDARD", "Way", "all_ways"]

DRIVER = Path(__file__).with_name("driver.py")
STANDARD = {"fork": [], "spawn": []}
OURS: dict[str, list[str]] = {
    "python": [],
    "dragon": ["-m", "dragon"],
    "two nodes": ["-m", "dragon", "--nodes", "2", "--no-label"],
}
HANGS = "hangs"
_PATIENCE_AT_END = 2.0


class Way:
    """A driver that runs programs in one way. It is restarted after a program hangs or ends it."""

    def __init__(self, command: list[str], method: str, environment: dict[str, str], patience: float) -> None:
        self._command = [sys.executable, *command, str(DRIVER), method]
        self._environment = environment
        self._patience = patience
        self._driver: subprocess.Popen[bytes] | None = None

    def run(self, program: dict[str, Any]) -> Any:
        """Return the result of each step; "hangs" if the driver does not reply in time; "ended: " and its stderr if it
        has ended.
        """
        if self._driver is None:
            self._driver = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        self._driver.stdin.write(json.dumps(program).encode() + b"\n")
        text = b""
        while not text.endswith(b"\n"):
            if not select.select([self._driver.stdout], [], [], self._patience)[0]:
                self.end(signal.SIGKILL)
                return HANGS
            part = os.read(self._driver.stdout.fileno(), 65536)
            if not part:
                return "ended: " + self.end(signal.SIGTERM)
            text += part
        return json.loads(text.splitlines()[-1])

    def end(self, number: int = 0) -> str:
        """End the driver; return its stderr."""
        driver, self._driver = self._driver, None
        if driver is None:
            return ""
        if number:
            driver.send_signal(number)
            try:
                driver.wait(_PATIENCE_AT_END)  # so that the standard library's tracker removes its semaphores
            except subprocess.TimeoutExpired:
                driver.kill()
            time.sleep(_PATIENCE_AT_END)
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
        _, said = driver.communicate(timeout=60)
        return f"{driver.returncode}: {said.decode(errors='replace')}"


@contextmanager
def all_ways(environment: dict[str, str], patience: float = 30) -> Iterator[dict[str, Way]]:
    """Return all ways by name."""
    ways = {name: Way(command, name, environment, patience) for name, command in STANDARD.items()}
    ways |= {name: Way(command, "dragon", environment, patience) for name, command in OURS.items()}
    try:
        yield ways
    finally:
        for way in ways.values():
            way.end()
