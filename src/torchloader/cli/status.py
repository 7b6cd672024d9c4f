"""`torchloader status`: shows the applications of a running workload, their nodes and their speed."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragon.commands import Parser, need, table
from torchloader.cli.masters import add_run, send
from torchloader.cli.report import history
from torchloader.scheduling.application import ENDED
from torchloader.scheduling.log import LogError
from torchloader.service.messages import GetStatus, NoMasterError

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("application", "state", "iteration", "samples/s", "waiting", "workers", "devices", "on", "why")


def lines(status: dict[str, Any]) -> str:
    nodes = [
        f"{each['node']}: {each['used']} of {each['cores']} cores load"
        + (f", {each['lent']} for other programs" if each["lent"] else "")
        for each in status["nodes"]
    ]
    title = f"{status['time']:.0f} s, policy {status['policy']}; {'; '.join(nodes)}"
    return f"{title}\n{table([COLUMNS, *rows(status)])}"


def rows(status: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            each["name"],
            each["state"],
            f"{each['iteration']}/{each['iterations'] or '?'}",
            f"{each['samples_per_second']:.1f}" if each["samples_per_second"] else "",
            f"{each['waiting']:.0%}" if each["samples_per_second"] else "",
            _workers(each),
            str(each["devices"]),
            ", ".join(each["nodes"]),
            " ".join(each["reason"].split())[:80],
        )
        for each in status["applications"]
    ]


def _workers(application: dict[str, Any]) -> str:
    if not application["workers"]:
        return ""
    away = f", {application['away']} away" if application["away"] else ""
    return f"{application['workers']}x{application['devices']}{away}"


_REFRESH_INTERVAL_S = 1.0


def watch(ask: Callable[[], dict[str, Any]]) -> None:
    """Show what `ask` returns until the master has ended."""
    need("--watch", "rich", "telemetry")
    from rich.live import Live

    first = ask()
    with Live(_drawn(first), refresh_per_second=4) as live:
        for status in _again(ask, first):
            live.update(_drawn(status))


def follow(ask: Callable[[], dict[str, Any]]) -> None:
    """Print what `ask` returns as lines of JSON until the master has ended."""
    first = ask()
    for status in chain([first], _again(ask, first)):
        print(json.dumps(status), flush=True)


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


def _drawn(status: dict[str, Any]) -> Table:
    from rich.table import Table

    title = lines(status).splitlines()[0]
    table = Table(*COLUMNS, title=title, title_justify="left", expand=True)
    for row in rows(status):
        table.add_row(*row)
    return table


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="torchloader status", description="Show the applications of a running workload, and their workers."
    )
    result.add_argument("--watch", action="store_true", help="update every second, until the workload has ended")
    result.add_argument("--json", action="store_true", help="print JSON; with --watch a line of it every second")
    add_run(result)
    return result


def main(words: Sequence[str]) -> int:
    arguments = parser().parse_args(list(words))
    ask = partial(send, arguments.run, GetStatus())
    if arguments.watch:
        (follow if arguments.json else watch)(ask)
    else:
        print(json.dumps(ask(), indent=2) if arguments.json else lines(ask()))
    return 0
