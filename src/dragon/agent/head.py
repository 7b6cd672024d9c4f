"""The head process of a run of several nodes, which is on the run's first node."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable

from dragon.agent.processes.starting import Copies
from dragon.agent.services import Services
from dragon.infrastructure.messages import Output, Spawn
from dragon.infrastructure.system import code_of_shells
from dragon.runtime import plan
from dragon.runtime.handle import Words
from dragon.runtime.protocol.front_end import HeadExited, Message, StartHead, WantsInput
from dragon.runtime.run import next_puid
from dragon.runtime.spawning import RECORD_WORDS


class Head:
    """Starts the head process, forwards input and signals to it, and reports its end to the front end with `send`."""

    def __init__(self, services: Services, send: Callable[[Message], None]) -> None:
        self._services = services
        self._send = send
        self._puid = 0
        self._stdin = -1
        self._input: deque[bytes] = deque()

    def start(self, wanted: StartHead) -> None:
        """Start the user's program."""
        self._puid = next_puid(self._services.run.node)
        record = Words(RECORD_WORDS)
        request = Spawn(
            puid=self._puid,
            record=record._name(),
            name="head",
            executable=wanted.executable,
            arguments=wanted.arguments,
            environment={name: value for name, value in wanted.environment.items() if os.environ.get(name) != value},
            folder=wanted.folder,
            signals=wanted.signals,
            leave_running=True,
            streams=[Output(), Output("forward"), Output("forward")],
        )
        plan.note_head([wanted.executable, *wanted.arguments], self._puid)
        reading, self._stdin = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.set_blocking(self._stdin, False)
        os.set_blocking(reading, True)
        try:
            self._services.registry.await_end(self._puid).add_done_callback(self._ended)
            self._services.registry.asked(self._puid)
            self._services.spawner.start(request, [Copies([reading, null, null])], record)
        finally:
            os.close(reading)
            os.close(null)
        self._send(WantsInput())

    def signal(self, number: int) -> None:
        """Send the head process a signal, once it is started."""
        self._services.registry.signal(self._puid, number)

    def notice(self, number: int) -> None:
        """Forward a signal that this agent received, if the head process is on this node."""
        if self._puid:
            self.signal(number)

    def input(self, data: bytes) -> None:
        """Write the next piece of its standard input; an empty one closes it."""
        self._input.append(data)
        self._write()

    def _write(self) -> None:
        loop = self._services.loop
        while self._input and self._stdin >= 0:
            data = self._input.popleft()
            if not data:
                self._close_input()
                return
            try:
                rest = data[os.write(self._stdin, data) :]
            except BlockingIOError:
                rest = data
            except BrokenPipeError:
                self._close_input()
                return
            if rest:
                self._input.appendleft(rest)
                loop.add_writer(self._stdin, self._write)
                return
            loop.remove_writer(self._stdin)
            self._send(WantsInput())

    def _close_input(self) -> None:
        if self._stdin >= 0:
            self._services.loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = -1
        self._input.clear()

    def _ended(self, future: asyncio.Future[int]) -> None:
        self._close_input()
        error = future.exception()
        if error is not None:
            number = error.errno if isinstance(error, OSError) else None
            self._send(HeadExited(code_of_shells(number or errno.ENOENT), str(error)))
        else:
            self._send(HeadExited(future.result()))
