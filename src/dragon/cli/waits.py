"""In words, what a process waits for in the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dragon.runtime.inspection import Report

if TYPE_CHECKING:
    from dragon._core import _Wait

__all__ = ["describe", "words_of"]

_MOST_NAMES = 4


def describe(wait: _Wait, names: Mapping[int, str], report: Report | None) -> str:
    """What goes after "waits". `names` are those of processes by process id."""
    which = f"{wait['offset']:#x}"
    kind, purpose = wait["kind"], wait["purpose"]
    if kind == "Lock":
        return f"to acquire lock {which}, {_holder(wait.get('holder', 0), names)}"
    if kind == "Words":
        return words_of(wait["offset"], report) or f"for a change of shared words {which}"
    what = {
        "Channel": _channel(purpose, which, wait.get("size", 0), wait.get("capacity", 0)),
        "Semaphore": f"to acquire semaphore {which}, whose value is {wait.get('value')}",
        "Event": f"for event {which} to be set",
        "Condition": f"to be notified by condition {which}",
    }.get(kind)
    return f"{what}; {_others(wait, names)}" if what else "for something that is gone by now"


def _channel(purpose: str, which: str, size: int, capacity: int) -> str:
    holds = f"holds {size}" + (f" of {capacity}" if capacity else "")
    return {
        "put": f"to put into channel {which}, which {holds}",
        "join": f"for what was put into channel {which} to be done",
    }.get(purpose, f"for something in channel {which}, which " + (holds if size else "is empty"))


def _holder(holder: int, names: Mapping[int, str]) -> str:
    return f"held by {names.get(holder, 'a process')} (pid {holder})" if holder else "which nobody holds now"


def words_of(offset: int, report: Report | None) -> str:
    """What the agent knows shared words at that offset to be; empty where it does not."""
    if report is None:
        return ""
    for puid, _, name, record in report.processes:
        if record == offset:
            return f"for the end of {name} (puid {puid})"
    for group in report.groups:
        if group.words == offset:
            return f"for group {group.name} ({group.live} of {group.members} members running)"
    return ""


def _others(wait: _Wait, names: Mapping[int, str]) -> str:
    """Who else could do something about it."""
    others = [names.get(pid, f"pid {pid}") for pid in dict.fromkeys(wait["attached"]) if pid != wait["pid"]]
    if not others:
        return "no other process has it now"
    rest = f" and {len(others) - _MOST_NAMES} more" if len(others) > _MOST_NAMES else ""
    return f"{', '.join(others[:_MOST_NAMES])}{rest} {'has' if len(others) == 1 else 'have'} it too"
