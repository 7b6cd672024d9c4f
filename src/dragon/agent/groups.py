"""Process groups: started together, kept alive or ended together, followed through shared words.

A group is Idle, then Running, then Idle again when its last member has ended, or Error if a member failed. The first
failure is the one that is reported; unless failures are to be ignored, the others are then ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from signal import Signals
from typing import Any, ClassVar

import msgspec

from dragon import _core
from dragon.agent.registry import Registry
from dragon.infrastructure.facts import FIRST_PUID
from dragon.infrastructure.messages import Output, Spawn
from dragon.runtime.handle import Words
from dragon.runtime.log import runtime_log
from dragon.runtime.spawning import RECORD_WORDS

__all__ = ["CHANGES", "GROUP_WORDS", "LIVE", "Groups"]

log = runtime_log("groups")

# The words of a group: LIVE counts members that have not ended, CHANGES everything that happens.
LIVE, CHANGES, GROUP_WORDS = 0, 1, 2

_PATIENCE = 5.0
_RESTART_PAUSES = (0.0, 0.0, 0.1, 0.5, 1.0)
_AWAIT_STDERR = 0.2
_FOR_OWN_END = 1.0  # between a member's failure and the end of the others


class Member:
    """One place in a group; a restarted member is a new process in the same place."""

    def __init__(self, rank: int, template: Spawn) -> None:
        self.rank = rank
        self.template = template
        self.puid = 0
        self.record: Words | None = None
        self.code: int | None = None
        self.restarts = 0

    @property
    def alive(self) -> bool:
        return self.record is not None and self.code is None


class Group:
    """What the agent knows of one group."""

    def __init__(self, number: int, settings: dict[str, Any], descriptors: list[int]) -> None:
        self.number = number
        self.restart: bool = settings["restart"]
        self.ignore_errors: bool = settings["ignore_error_on_exit"]
        self.walltime: float | None = settings["walltime"]
        self.name: str = settings["name"] or f"group-{number}"
        self.descriptors = [os.dup(fd) for fd in descriptors]
        self.words = Words(GROUP_WORDS)
        self.members: list[Member] = []
        self.ended: list[tuple[int, int]] = []
        self.failure: str = ""
        self.failed_codes: list[int] = []
        self.ending = False
        self.timers: list[asyncio.TimerHandle] = []
        self.by_puid: dict[int, Member] = {}

    @property
    def live(self) -> int:
        return self.words[LIVE]

    def changed(self) -> None:
        self.words.add(CHANGES, 1)

    def cancel_timers(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers = []


class Groups:
    """All groups of this node."""

    OPERATIONS: ClassVar[set[str]] = {"create", "start", "signal", "stop", "stop_restart", "status", "close"}

    def __init__(self, spawn: Callable[[Spawn, list[int]], None], registry: Registry) -> None:
        self._spawn = spawn
        self._registry = registry
        self._groups: dict[int, Group] = {}
        self._last = 0

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    # ---- requests

    def create(
        self, settings: dict[str, Any], templates: list[Any], places: list[Any], descriptors: list[int]
    ) -> dict[str, Any]:
        """A new group. `templates` are requests without a place; `descriptors` are the creator's streams.

        `places` are, in the order of ranks, (count of members, index of the template, node, CPUs, environment).
        """
        self._last += 1
        group = Group(self._last, settings, descriptors)
        requests = [msgspec.convert(description, Spawn) for description in templates]
        for count, which, node, cpus, environment in places:
            request = requests[which]
            template = msgspec.structs.replace(
                request,
                node=node,
                cpus=cpus,
                environment={**request.environment, **environment} if environment else request.environment,
                group=group.number,
            )
            group.members += [Member(len(group.members) + i, template) for i in range(count)]
        self._groups[group.number] = group
        return {"number": group.number, "words": group.words._name()}

    def _group(self, number: int) -> Group:
        group = self._groups.get(number)
        if group is None:
            raise LookupError("the group was closed")
        return group

    def start(self, number: int) -> list[int]:
        """Start all members; returns their puids in order."""
        group = self._group(number)
        if group.live:
            raise RuntimeError("the group is running already")
        group.ended, group.failure, group.failed_codes, group.ending = [], "", [], False
        group.by_puid = {}
        group.words[LIVE] = len(group.members)
        for member in group.members:
            member.restarts = 0
            self._start_member(group, member)
        if group.walltime is not None:
            group.timers.append(self.loop.call_later(group.walltime, self._walltime, group))
        return [member.puid for member in group.members]

    def _start_member(self, group: Group, member: Member) -> None:
        member.puid = FIRST_PUID + _core.next_number()
        member.record = Words(RECORD_WORDS)
        member.code = None
        group.by_puid[member.puid] = member
        template = member.template
        request = msgspec.structs.replace(
            template,
            puid=member.puid,
            record=member.record._name(),
            name=f"{group.name}-{member.rank}",
            streams=template.streams or [Output(), Output(), Output("tee")],
        )
        self._spawn(request, group.descriptors)

    def signal(self, number: int, which: int) -> None:
        """Send a signal to every live member."""
        group = self._group(number)
        if which in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            group.ending = True
        self._signal_all(group, which)

    def _signal_all(self, group: Group, which: int) -> None:
        for member in group.members:
            if member.alive:
                self._registry_kill(member, which)

    def _registry_kill(self, member: Member, which: int) -> None:
        try:
            self._registry.kill(member.puid, which)
        except LookupError:
            # Asked for, not yet started: it gets the signal then.
            self.loop.call_later(0.01, self._registry_kill, member, which) if member.alive else None

    def stop(self, number: int, patience: float = _PATIENCE) -> None:
        """Interrupt, then terminate, then kill, with `patience` seconds between the steps."""
        group = self._group(number)
        group.ending = True
        group.restart = False
        self._escalate(group, [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], patience)

    def _escalate(self, group: Group, steps: list[Signals], patience: float) -> None:
        if not group.live or not steps:
            return
        self._signal_all(group, steps[0])
        group.timers.append(self.loop.call_later(patience, self._escalate, group, steps[1:], patience))

    def stop_restart(self, number: int) -> None:
        """Members that end from now on stay ended."""
        self._group(number).restart = False

    def status(self, number: int) -> dict[str, Any]:
        """Everything a client asks of a group."""
        group = self._group(number)
        return {
            "live": [m.puid for m in group.members if m.alive],
            "ended": group.ended,
            "failure": group.failure,
            "failed_codes": group.failed_codes,
        }

    def close(self, number: int) -> None:
        """Forget the group; what still lives is killed."""
        group = self._groups.pop(number, None)
        if group is None:
            return
        group.cancel_timers()
        group.ending = True
        group.restart = False
        self._signal_all(group, signal.SIGKILL)
        for fd in group.descriptors:
            os.close(fd)
        group.words._destroy()

    # ---- events

    def started(self, puid: int, group: int, **_: Any) -> None:
        """The zygote started a member."""
        if group in self._groups:
            self._groups[group].changed()

    def failed(self, puid: int, group: int, text: str) -> None:
        """The zygote could not start a member."""
        if group in self._groups:
            member = self._groups[group].by_puid.get(puid)
            if member is not None:
                self._note_failure(self._groups[group], member, 127, text)
                self._ended(self._groups[group], member, 127)

    def exited(self, puid: int, code: int, group: int) -> None:
        """A member ended."""
        found = self._groups.get(group)
        member = found.by_puid.get(puid) if found else None
        if found is None or member is None or not member.alive:
            return
        if code != 0 and self._registry._streams.is_open(puid):
            # What it last wrote may still be on its way.
            member.code = code
            self.loop.call_later(_AWAIT_STDERR, self._exited, found, member, code)
        else:
            self._exited(found, member, code)

    def _exited(self, group: Group, member: Member, code: int) -> None:
        tail = self._registry._streams.tails.pop(member.puid, b"").decode(errors="replace").strip()
        if group.restart and not group.ending:
            member.code = code
            group.ended.append((member.puid, code))
            pause = _RESTART_PAUSES[min(member.restarts, len(_RESTART_PAUSES) - 1)]
            member.restarts += 1
            self.loop.call_later(pause, self._start_again, group, member)
            return
        if code != 0 and not group.ending:
            self._note_failure(group, member, code, tail)
        self._ended(group, member, code)

    def _start_again(self, group: Group, member: Member) -> None:
        if group.number in self._groups and group.restart and not group.ending:
            self._start_member(group, member)
            group.changed()
        elif member.code is not None:
            self._leave(group)

    def _note_failure(self, group: Group, member: Member, code: int, tail: str) -> None:
        group.failed_codes.append(code)
        if group.failure:
            return
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        what = f"rank {member.rank} (puid {member.puid}) on {socket.gethostname()} ended with {how}"
        group.failure = what + (f"; it last wrote:\n{tail}" if tail else "")
        if not group.ignore_errors and len(group.members) > 1:
            # Let the others come to their own end for a moment: the first cause is known already.
            group.timers.append(self.loop.call_later(_FOR_OWN_END, self._end_the_others, group))

    def _end_the_others(self, group: Group) -> None:
        group.ending = True
        self._escalate(group, [signal.SIGTERM, signal.SIGKILL], _PATIENCE)

    def _ended(self, group: Group, member: Member, code: int) -> None:
        member.code = code
        group.ended.append((member.puid, code))
        self._leave(group)

    def _leave(self, group: Group) -> None:
        group.words[LIVE] = group.words[LIVE] - 1
        group.changed()
        if not group.live:
            group.cancel_timers()

    def _walltime(self, group: Group) -> None:
        live = sum(m.alive for m in group.members)
        if live:
            log.warning("%s reached its walltime of %s s; its %d processes are ended", group.name, group.walltime, live)
            group.ending = True
            group.restart = False
            self._signal_all(group, signal.SIGKILL)
