"""A cluster's state in a terminal, drawn anew every second."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from torchloader.report.status import COLUMNS, lines, rows
from torchloader.service.contact import NoMasterError

__all__ = ["follow", "watch"]

_PERIOD = 1.0  # seconds


def watch(ask: Callable[[], dict[str, Any]]) -> int:
    """Show what `ask` gives until there is nobody to ask any more; an exit code."""
    try:
        from rich.live import Live
    except ModuleNotFoundError:
        raise ModuleNotFoundError("--watch needs rich: pip install 'dragon-runtime[telemetry]'") from None
    with Live(_drawn(ask()), refresh_per_second=4) as live:
        for status in _again(ask):
            live.update(_drawn(status))
    return 0


def follow(ask: Callable[[], dict[str, Any]]) -> int:
    """Print what `ask` gives as lines of JSON until there is nobody to ask any more; an exit code."""
    print(json.dumps(ask()), flush=True)
    for status in _again(ask):
        print(json.dumps(status), flush=True)
    return 0


def _again(ask: Callable[[], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    while True:
        time.sleep(_PERIOD)
        try:
            status = ask()
        except NoMasterError:
            return
        yield status


def _drawn(status: dict[str, Any]) -> Any:
    from rich.table import Table

    title = lines(status).splitlines()[0]
    table = Table(*COLUMNS, title=title, title_justify="left", expand=True)
    for row in rows(status):
        table.add_row(*row)
    return table
