"""Formats a cluster's state as lines of text."""

from __future__ import annotations

from typing import Any

__all__ = ["COLUMNS", "lines", "rows"]

COLUMNS = ("application", "state", "iteration", "samples/s", "waiting", "workers", "devices", "on", "why")


def lines(status: dict[str, Any]) -> str:
    """Format the master's reply to "status" as a table."""
    nodes = [f"{each['node']}: {each['used']} of {each['cores']} cores load{_lent(each)}" for each in status["nodes"]]
    table = [COLUMNS, *rows(status)]
    widths = [max(len(row[column]) for row in table) for column in range(len(COLUMNS) - 1)]
    text = ["  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in table]
    return "\n".join([f"{status['time']:.0f} s, policy {status['policy']}; {'; '.join(nodes)}", *text])


def rows(status: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return one row for each application."""
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


def _lent(node: dict[str, Any]) -> str:
    return f", {node['lent']} for other programs" if node["lent"] else ""


def _workers(application: dict[str, Any]) -> str:
    if not application["workers"]:
        return ""
    away = f", {application['away']} away" if application["away"] else ""
    return f"{application['workers']}x{application['devices']}{away}"
