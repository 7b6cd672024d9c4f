"""A cluster's state in a terminal, drawn anew every second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torchloader.report.status import COLUMNS, lines, rows
from torchloader.service.contact import NoMasterError

__all__ = ["watch"]

_PERIOD = 1.0  # seconds


def watch(ask: Callable[[], dict[str, Any]]) -> int:
    """Show what `ask` gives until there is nobody to ask any more; an exit code."""
    try:
        from rich.live import Live
    except ModuleNotFoundError:
        raise ModuleNotFoundError("--watch needs rich: pip install 'dragon-runtime[telemetry]'") from None
    with Live(_drawn(ask()), refresh_per_second=4) as live:
        while True:
            time.sleep(_PERIOD)
            try:
                status = ask()
            except NoMasterError:
                return 0
            live.update(_drawn(status))


def _drawn(status: dict[str, Any]) -> Any:
    from rich.table import Table

    title = lines(status).splitlines()[0]
    table = Table(*COLUMNS, title=title, title_justify="left", expand=True)
    for row in rows(status):
        table.add_row(*row)
    return table
