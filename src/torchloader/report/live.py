"""Shows a cluster's state in a terminal, updated every second."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchloader.report.history import history
from torchloader.report.status import COLUMNS, lines, rows
from torchloader.scheduling.log import LogError
from torchloader.scheduling.states import ENDED
from torchloader.service.contact import NoMasterError

__all__ = ["follow", "watch"]

_REFRESH_INTERVAL_S = 1.0


def watch(ask: Callable[[], dict[str, Any]]) -> int:
    """Show what `ask` returns until the master has ended. Returns an exit code."""
    try:
        from rich.live import Live
    except ModuleNotFoundError:
        raise ModuleNotFoundError("--watch needs rich: pip install 'dragon-runtime[telemetry]'") from None
    first = ask()
    with Live(_drawn(first), refresh_per_second=4) as live:
        for status in _again(ask, first):
            live.update(_drawn(status))
    return 0


def follow(ask: Callable[[], dict[str, Any]]) -> int:
    """Print what `ask` returns as lines of JSON until the master has ended. Returns an exit code."""
    first = ask()
    print(json.dumps(first), flush=True)
    for status in _again(ask, first):
        print(json.dumps(status), flush=True)
    return 0


def _again(ask: Callable[[], dict[str, Any]], status: dict[str, Any]) -> Iterator[dict[str, Any]]:
    while True:
        time.sleep(_REFRESH_INTERVAL_S)
        try:
            status = ask()
        except NoMasterError:
            yield _at_end(status)
            return
        yield status


def _at_end(status: dict[str, Any]) -> dict[str, Any]:
    """Return the last status, updated with the final states of the applications from the event log."""
    try:
        run = history(Path(status["folder"]))
    except (OSError, LogError) as error:
        print(f"torchloader: the run has ended; how its applications ended is not known: {error}", file=sys.stderr)
        return status
    applications = []
    for each in status["applications"]:
        life = run.lives[each["name"]]
        last = life.spans[-1]
        found = {**each, "state": last.state, "iteration": max(each["iteration"], int(life.iterations))}
        if last.state in ENDED:
            found |= {"reason": last.reason, "workers": 0, "samples_per_second": 0.0, "nodes": []}
        applications.append(found)
    return {**status, "time": max(status["time"], run.end), "applications": applications}


def _drawn(status: dict[str, Any]) -> Any:
    from rich.table import Table

    title = lines(status).splitlines()[0]
    table = Table(*COLUMNS, title=title, title_justify="left", expand=True)
    for row in rows(status):
        table.add_row(*row)
    return table
