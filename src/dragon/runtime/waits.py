"""Describes in words what processes wait for in the runtime, for `dragon doctor` and the dashboard."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from dragon.runtime.inspection import Pending, Report

if TYPE_CHECKING:
    from dragon._core import _Wait

_MOST_NAMES = 4
_ELSEWHERE = "a process of another node"


class Wait(msgspec.Struct):
    """What a thread waits for. `thread` is Python's number of the thread, 0 if unknown."""

    thread: int
    seconds: float
    text: str


class Names:
    """The names of a node's processes, by process id, and descriptions of shared words, by their offset in the arena.

    Processes of other nodes act through the agent: an object that the agent holds is held by one of them.
    """

    def __init__(self, processes: Mapping[int, str], report: Report | None, agent: int = 0) -> None:
        self.processes = processes
        self.agent = agent
        self.words: dict[int, str] = {}
        if report is not None:
            for group in report.groups:
                self.words[group.words] = f"for group {group.name} ({group.live} of {group.members} members running)"
            for puid, _, name, record in report.processes:
                self.words[record] = f"for the end of {name} (puid {puid})"

    def holder(self, pid: int) -> str:
        """Return words that say which process holds a lock."""
        if pid == 0:
            return "which nobody holds now"
        if pid == self.agent:
            return f"held by {_ELSEWHERE}"
        return f"held by {self.processes.get(pid, 'a process')} (pid {pid})"

    def of(self, pid: int) -> str:
        """Return the name of a process."""
        return _ELSEWHERE if pid == self.agent else self.processes.get(pid, f"pid {pid}")


def waits_of(noted: Iterable[_Wait], report: Report | None, names: Names) -> Iterator[tuple[int, Wait]]:
    """Yield what processes of a node wait for, by process id: in shared memory, and for replies of the agent."""
    for wait in noted:
        if wait["pid"] != names.agent:
            yield wait["pid"], Wait(wait["thread"], round(wait["seconds"], 1), describe(wait, names))
    for asked in report.asked if report is not None else ():
        yield int(asked.who), Wait(0, round(asked.seconds, 1), describe_asked(asked))


def describe(wait: _Wait, names: Names, waiting: Collection[int] = ()) -> str:
    """Return the words that follow "waits". Processes in `waiting`, which wait for the same object, are not
    mentioned."""
    kind, purpose = wait["kind"], wait["purpose"]
    which = _object(kind, wait["offset"], wait["place"])
    if kind == "Lock":
        return f"to acquire {which}, {names.holder(wait.get('holder', 0))}"
    if kind == "Words":
        return names.words.get(wait["offset"]) or f"for a change of {which}"
    what = {
        "Channel": _channel(purpose, which, wait.get("size", 0), wait.get("capacity", 0)),
        "Semaphore": f"to acquire {which}, whose value is {wait.get('value')}",
        "Event": f"for {which} to be set",
        "Condition": f"to be notified by {which}",
    }.get(kind)
    return f"{what}; {_others(wait, names, waiting)}" if what else "for something that is gone by now"


def describe_asked(asked: Pending) -> str:
    """Return the words that follow "waits" for a pending request of a process to its agent."""
    return f"for the agent to answer: {asked.what}"


def describe_parked(parked: Pending, names: Names) -> str:
    """Return the words that follow "waits" for a process of another node that waits for an object of this one."""
    kind, _, method = parked.what.partition(".")
    which = _object(kind, parked.offset, parked.place)
    if parked.what == "Lock.acquire":
        return f"to acquire {which}, {names.holder(parked.holder)}"
    return names.words.get(parked.offset) or f"for {method} of {which}"


def _object(kind: str, offset: int, place: str) -> str:
    """Return words for an object: where the program made it, or its place in memory if the runtime made it."""
    noun = {"Channel": "queue" if place else "channel", "Words": "shared words"}.get(kind, kind.lower())
    return f"the {noun} made at {place}" if place else f"{noun} {offset:#x}"


def _channel(purpose: str, which: str, size: int, capacity: int) -> str:
    holds = f"holds {size}" + (f" of {capacity}" if capacity else "")
    return {
        "put": f"to put into {which}, which {holds}",
        "join": f"for what was put into {which} to be done",
    }.get(purpose, f"for something in {which}, which " + (holds if size else "is empty"))


def _others(wait: _Wait, names: Names, waiting: Collection[int]) -> str:
    """Return words that say which other processes could end the wait."""
    pids = [pid for pid in dict.fromkeys(wait["attached"]) if pid != wait["pid"] and pid not in waiting]
    others = [names.of(pid) for pid in pids]
    if not others:
        return "no other process has it now"
    rest = f" and {len(others) - _MOST_NAMES} more" if len(others) > _MOST_NAMES else ""
    return f"{', '.join(others[:_MOST_NAMES])}{rest} {'has' if len(others) == 1 else 'have'} it too"
