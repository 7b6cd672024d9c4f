"""The benchmark that runs real training, which users may interrupt."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from conftest import Site

LIVE = Path(__file__).parents[2] / "benchmarks" / "torchloader" / "live.py"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_benchmark_ends_its_run_and_removes_its_folders(site: Site, number: signal.Signals) -> None:
    scratch = site.folder / "scratch"
    scratch.mkdir()
    live = site.start(sys.executable, LIVE, "mix", env={"TMPDIR": str(scratch)})
    end = time.monotonic() + 60
    while not list(scratch.glob("tmp*/run/events.jsonl")):
        assert live.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    live.send_signal(number)
    live.communicate(timeout=60)
    assert live.returncode == 128 + number
    assert list(scratch.glob("tmp*")) == []
    site.assert_nothing_left()
