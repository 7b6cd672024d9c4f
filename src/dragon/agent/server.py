"""The agent: what it serves, from the start of its loop to the end of the run."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import msgspec
import uvloop

from dragon import _core
from dragon.agent.clients import Clients
from dragon.agent.cluster import Cluster
from dragon.agent.processes.parents import children_of
from dragon.agent.processes.spawner import Spawner
from dragon.agent.report import report
from dragon.agent.services import Services
from dragon.agent.telemetry.service import Telemetry
from dragon.infrastructure.errors import DragonError, RunEndedError
from dragon.infrastructure.limits import allow_many_files
from dragon.infrastructure.signals import ENDING, heeded
from dragon.runtime.folder import Owner, hold, is_alive, remove_folder
from dragon.runtime.log import runtime_log
from dragon.runtime.loop_errors import tell_loop_errors
from dragon.runtime.run import WRITING, Run
from dragon.web import serving

__all__ = ["Agent"]

log = runtime_log("agent")

_SWEEP_EVERY = 10.0  # seconds
_ZYGOTE_ENDS_WITHIN = 10.0
_SOON = 1.0

Join = Callable[[Run, Spawner], Awaitable[Cluster]]


class Agent:
    """One per node. Everything in it runs on one event loop.

    `owner` is the process whose end is the run's end. A run of several nodes has `join` instead, with which this agent
    finds the others.
    """

    def __init__(
        self,
        run: Run,
        zygote: int,
        events: socket.socket,
        requests: socket.socket,
        owner: Owner | None = None,
        join: Join | None = None,
    ) -> None:
        self.run = run
        self.zygote = zygote
        self.cluster: Cluster | None = None
        self._owner = owner
        self._join = join
        self._events = events
        self._requests = requests
        self._code = 0

    def serve_for_ever(self) -> NoReturn:
        """Serve until the run ends, then leave nothing behind, whatever happened."""
        uvloop.run(self._serve_and_leave())
        raise AssertionError("an agent that has left goes on")

    async def _serve_and_leave(self) -> NoReturn:
        # From within the loop, which takes its handlers of signals with it: a terminal that is closed sends two.
        try:
            await self._serve()
        except Exception:
            log.exception("the agent failed; the run ends")
            self._code = 1
        finally:
            remove_folder(self.run.folder)
            os._exit(self._code)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        tell_loop_errors(self.loop)
        allow_many_files()
        self.over = self.loop.create_future()
        for number in heeded(ENDING):
            self.loop.add_signal_handler(number, self.end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        if self._owner is not None:
            self._watch(self._owner)
        try:
            self.spawner = Spawner(self.run.zygote_socket(), self._events, self._on_event, self._on_zygote_gone)
        except ConnectionRefusedError:
            log.error("the zygote (pid %d) is gone already; the run ends", self.zygote)
            await self._finish()
            return
        try:
            if await self._find_others():
                self._open()
                await self.over
        finally:
            await self._finish()

    async def _find_others(self) -> bool:
        """In a run of several nodes, join it; whether this node is in its run."""
        if self._join is None:
            return True
        joining = asyncio.ensure_future(self._join(self.run, self.spawner))
        await asyncio.wait([joining, self.over], return_when=asyncio.FIRST_COMPLETED)
        if not joining.done():
            joining.cancel()
            return False
        try:
            self.cluster = joining.result()
        except RunEndedError as error:
            log.debug("%s", error)
            return False
        except DragonError as error:
            log.error("%s", error)
            self._code = 1
            return False
        return True

    def _open(self) -> None:
        peers = self.cluster.peers if self.cluster is not None else None
        self.services = Services(self.run, self.zygote, self.spawner, peers, self.over)
        self._held = hold(self.run.folder)
        self._sweep()
        if self.cluster is not None:
            self.cluster.open(self.services, self.ask)
        self.telemetry = Telemetry(self.services)
        self.services.add("telemetry", self.telemetry)
        if self.cluster is None and serving.are_wanted():
            self._views = serving.Views(self.ask)
            self._opening = self.loop.create_task(self._views.open())
        self.clients = Clients(self._requests, self.handle)

    def _sweep(self) -> None:
        """Free what processes left that the zygote did not start: programs that joined the run, a user's own forks."""
        _core.reap_dead()
        self.loop.call_later(_SWEEP_EVERY, self._sweep)

    def _watch(self, process: Owner) -> None:
        try:
            fd = _core.open_process(process.pid)
        except ProcessLookupError:
            self.end()
            return
        if is_alive(process):
            self.loop.add_reader(fd, self.end)
        else:
            self.end()

    # ---- events

    def _on_zygote_gone(self, reason: str) -> None:
        log.error("the zygote (pid %d) is gone (%s); the run ends", self.zygote, reason)
        self.end()

    def _on_event(self, kind: str, event: dict[str, Any], descriptors: list[int]) -> None:
        self.services.on_event(kind, event, descriptors)

    # ---- requests

    def handle(self, caller: int, operation: str, arguments: dict[str, Any], descriptors: list[int]) -> Any:
        """Do what a process asked for; what this returns or raises, or its future, is the reply."""
        if operation == "end":
            self.cluster.end_run() if self.cluster is not None else self.end()
            return None
        if operation == "report":
            return report(self.services, self.zygote, self.clients.pending)
        part, _, name = operation.partition(".")
        if self.cluster is not None:
            remote = self.services.remote
            if part == "remote" and remote is not None and name in remote.OPERATIONS:
                return getattr(remote, name)(caller, descriptors, **arguments)
            elsewhere = self.cluster.route(operation, arguments)
            if elsewhere is not None:
                return elsewhere
        return self.services.do(part, name, arguments, descriptors)

    async def ask(self, operation: str, arguments: dict[str, Any]) -> Any:
        """What a process would be answered, as plain data or as it is encoded."""
        answer = self.handle(os.getpid(), operation, arguments, [])
        if isinstance(answer, asyncio.Future):
            answer = await answer
        return answer if isinstance(answer, msgspec.Raw) else msgspec.to_builtins(answer)

    # ---- the end

    def end(self) -> None:
        """End the run; may be called again."""
        if not self.over.done():
            self.over.set_result(None)

    async def _finish(self) -> None:
        if hasattr(self, "spawner"):
            if hasattr(self, "telemetry") and self.telemetry.recording:
                await self.spawner.catch_up()  # what has ended did so by itself, and with an exit code
            self.spawner.close()
        try:
            gone = _core.open_process(self.zygote)
        except ProcessLookupError:
            gone = -1
        if gone >= 0 and not await self._await_end(gone, _ZYGOTE_ENDS_WITHIN):
            log.error("the zygote does not end; it is killed")
            os.kill(self.zygote, signal.SIGKILL)
        # What outlived its parents came to this process.
        trackers = self.services.trackers.processes if hasattr(self, "services") else set()
        while children := set(children_of(os.getpid())) - trackers:
            for pid in children:
                if pid != self.zygote:
                    os.kill(pid, signal.SIGKILL)
            for pid in children:
                os.waitpid(pid, 0)
        if hasattr(self, "services"):
            self.clients.accept()
            await self.services.trackers.finish()
            await self.telemetry.finish()
            self.services.jobs.close()
            self.services.streams.drain()
            await self._finish_files()
        if self.cluster is not None:
            await self.cluster.leave()

    async def _finish_files(self) -> None:
        """Wait until checkpoints that are due are written, and tell whoever waits for this agent if it takes long."""
        written = self.services.shards.finish()
        await asyncio.wait([written], timeout=_SOON)
        if not written.done():
            log.warning("the run ends once checkpoints that are due are written")
            (self.run.folder / WRITING).touch()
            if self.cluster is not None:
                self.cluster.tell_writing()
        await written

    async def _await_end(self, pidfd: int, timeout: float) -> bool:
        """Whether a process ends in time. What is asked of the agent meanwhile is still served."""
        ended = self.loop.create_future()
        self.loop.add_reader(pidfd, lambda: None if ended.done() else ended.set_result(None))
        try:
            async with asyncio.timeout(timeout):
                await ended
        except TimeoutError:
            return bool(select.select([pidfd], [], [], 0)[0])
        finally:
            self.loop.remove_reader(pidfd)
            os.close(pidfd)
        return True
