"""Prints the events of a cluster, line by line, from its event log."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from dragon.commands import discard_stdout

__all__ = ["Teller", "told"]


class Teller:
    """Follows a log. If stdout cannot be written any more, this is reported on stderr once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0

    def tell(self) -> None:
        """Print the events since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            lines = file.read()
        whole = lines.rfind(b"\n") + 1
        self._at += whole
        try:
            for line in lines[:whole].splitlines():
                print(told(json.loads(line)), flush=True)
        except OSError as error:
            # The reader of stdout has ended, or the disk of its file is full; jobs continue.
            discard_stdout()
            text = f"stdout cannot be written: {error.strerror}; what happens is in {self._path}"
            with contextlib.suppress(OSError):  # stderr may go to the same place
                print(f"torchloader: {text}", file=sys.stderr, flush=True)


def told(event: dict[str, Any]) -> str:
    """Return an event as a line of text."""
    change = event["to"] if event["from"] in (None, event["to"]) else f"{event['from']} → {event['to']}"
    details = event["details"]
    what = []
    if "placement" in details:
        what.append("on " + ", ".join(f"{node} {list(devices)}" for node, devices in details["placement"].items()))
    if "workers" in details:
        what.append(f"{details['workers']} loading workers per device")
    if "away" in details:
        others = sorted({node for away in details["away"].values() for node in away})
        what.append(f"some of them on {', '.join(others)}" if others else "all of them on its own nodes")
    if "curve" in details:
        curve = details["curve"]
        one = 1 / (curve["service"] + curve["shared"])
        what.append(f"computes {curve['ceiling']:.0f} samples/s, a worker loads {one:.0f}")
    return f"{event['time']:8.1f} s  {event['application']:<20} {change}: {'; '.join([event['reason'], *what])}"
