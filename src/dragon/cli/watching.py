"""A run that is shown from outside: a live one, which is measured meanwhile, or a recorded one."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar, cast

from dragon import runs
from dragon.infrastructure.errors import DragonError, RunEndedError
from dragon.infrastructure.metrics import Lifetime
from dragon.infrastructure.structs import msgspec
from dragon.runtime.folder import is_alive
from dragon.runtime.inspection import ask_agent
from dragon.runtime.protocol import telemetry
from dragon.runtime.protocol.request import Request, tag_of
from dragon.telemetry.recording import Recording

_Answer = TypeVar("_Answer")

_ANSWER_TIMEOUT_S = 10.0
_LEVEL = 4


def choose(word: str | None) -> Watched:
    """Return the run that `word` names; for None the only one. Raises NoSuchRunError."""
    found = runs.find()
    if word is not None:
        return Watched(runs.choose(word, found))
    if len(found) != 1:
        names = ", ".join(f"{run.name} ({run.shortened})" for run in found)
        raise runs.NoSuchRunError(
            f"you have several runs, name one: {names}" if found else "you have no runs on this machine"
        )
    return Watched(found[0])


class Watched:
    """A live run of this user with a node on this machine. It is measured within the `with` block."""

    def __init__(self, run: runs.Run) -> None:
        self.name = run.name
        self.command = run.command
        self._node = run.nodes[0]
        self._begun = False

    def __enter__(self) -> Self:
        if not self.ask(telemetry.TelemetryLevel()):
            self.ask(telemetry.StartMeasuring(_LEVEL))
            self._begun = True
        return self

    def __exit__(self, *raised: object) -> None:
        if self._begun and self.lives:
            with suppress(RunEndedError):  # it may end at this moment
                self.ask(telemetry.StopMeasuring())

    @property
    def now(self) -> float:
        return time.time()

    @property
    def lives(self) -> bool:
        return is_alive(self._node.info.agent)

    def ask(self, request: Request[_Answer]) -> _Answer:
        """Return the reply of the run's agent. Raises DragonError after 10 s."""
        try:
            return ask_agent(self._node.folder, request, _ANSWER_TIMEOUT_S)
        except TimeoutError:
            raise DragonError(f"run {self.name} has not answered within {_ANSWER_TIMEOUT_S:g} s") from None
        except RuntimeError as error:
            raise DragonError(f"run {self.name}: {error}") from error

    async def ask_soon(self, request: Request[_Answer]) -> _Answer:
        """Return the reply of the run's agent without blocking the event loop."""
        return await asyncio.to_thread(self.ask, request)


class Recorded:
    """A recorded run at a point in time, at first its end. Raises NoRecordingError."""

    def __init__(self, folder: Path) -> None:
        self._recording = Recording(folder)
        self._last = self.now = self._recording.end
        self._lifetimes = self._recording.lifetimes()
        self._run = self._recording.run(self._lifetimes)

    def move(self, seconds: float) -> None:
        """Move the time to show by `seconds`, within the recording."""
        self.now = min(max(self.now + seconds, self._recording.start), self._last)

    async def ask_soon(self, request: Request[_Answer]) -> _Answer:
        """Return what the run's agent would have replied at that time."""
        return cast(_Answer, await asyncio.to_thread(self._answer, request))

    def _answer(self, request: Request[object]) -> object:
        match request:
            case telemetry.StateOfRun():
                return self._run
            case telemetry.Lifetimes():
                return [_then(life, self.now) for life in self._lifetimes if life.started <= self.now]
            case telemetry.Query():
                return self._recording.answer(msgspec.structs.replace(request, end=min(request.end, self.now)))
        raise ValueError(f"a recording cannot answer {tag_of(type(request))}")


def _then(life: Lifetime, now: float) -> Lifetime:
    """Return a process as it was known at that time."""
    return msgspec.structs.replace(life, ended=None, code=None) if life.ended and life.ended > now else life
