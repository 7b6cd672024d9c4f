"""Runs the site's launcher for one job, on the node that follows it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from dragon import _core
from dragon.agent.mpi import relay
from dragon.agent.mpi.job import Job
from dragon.agent.mpi.launched import COME, GIVEN, LAUNCHER
from dragon.runtime.run import this_run
from dragon.runtime.site_launcher import launch_command, launch_environment
from dragon.signals import how_ended

_START_TIMEOUT_S = 60.0  # seconds within which all ranks must have been started
_FOR_THE_CAUSE_S = 0.5  # seconds within which the end of a rank may be reported that has caused the launcher's end
_FOR_OWN_END = 5.0  # seconds
_MAX_TAIL_BYTES = 2000  # bytes
# Isolated, without site packages: it needs none, and starts faster.
_TASK = [sys.executable, "-I", "-S", relay.__file__]


class Launch:
    """Runs the launcher, which starts a relay for each rank once all nodes await theirs, and ends after the last of
    them. If it ends before the job, the job ends too. `ended` is a future of how it has ended."""

    def __init__(self, job: Job, launcher: str, hosts: Mapping[int, str]) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._job = job
        self._launcher = launcher
        self._name = os.path.basename(launcher)
        self._hosts = [hosts[node] for node in job.placement]
        self._pid = 0
        self._begun = self._over = False
        self._loop = asyncio.get_running_loop()
        self._told: IO[bytes] = tempfile.TemporaryFile(dir=this_run().folder)  # noqa: SIM115 (it is this object's)
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        host_file = Path(this_run().folder, f"{self._job.name}.hosts")
        environment = {**launch_environment(self._launcher, host_file), relay.JOB: self._job.name}
        everyone = [LAUNCHER, *sorted(set(self._job.placement))]
        await self._job.gather(GIVEN, everyone, LAUNCHER, environment)
        if self.ended.done():
            return
        try:
            self._start(launch_command(self._launcher, self._hosts, host_file, _TASK), environment)
        except OSError as error:
            self.give_up(f"{self._launcher} could not be started: {error}")
            return
        ended = asyncio.ensure_future(self._await_end())
        come = self._job.gather(COME, everyone, LAUNCHER, None)
        either: set[asyncio.Future[Any]] = {ended, come}
        done, _ = await asyncio.wait(either, timeout=_START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            self.give_up(f"{self._name} has not started all ranks within {_START_TIMEOUT_S:g} s{self._tail()}")
        self._begun = come.done()
        code = await ended
        host_file.unlink(missing_ok=True)
        if not self.ended.done():
            self.ended.set_result(f"{self._name} ended with {how_ended(code)}{self._tail()}")
        if code:
            self._loop.call_later(_FOR_THE_CAUSE_S, self._end_job, 0, f"lost its launcher: {self.ended.result()}")

    def _start(self, command: list[str], environment: dict[str, str]) -> None:
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._pid = _core.start_executable(
                executable=self._launcher,
                arguments=command,
                environment=[f"{name}={value}" for name, value in environment.items()],
                folder="",
                descriptors=[null, self._told.fileno(), self._told.fileno()],
                cpus=[],
                limits=[],
                signals=[],
                death_signal=signal.SIGTERM,
                reaper=False,
                detached=False,
            )
        finally:
            os.close(null)

    async def _await_end(self) -> int:
        """Wait until it has ended, and return its exit code."""
        ended = self._loop.create_future()
        process = _core.open_process(self._pid)
        self._loop.add_reader(process, lambda: None if ended.done() else ended.set_result(None))
        try:
            await ended
            pid, self._pid = self._pid, 0
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ChildProcessError:
            return -signal.SIGKILL  # killed and reaped by the agent at the end of the run
        finally:
            self._loop.remove_reader(process)
            os.close(process)

    def _tail(self) -> str:
        """Return its last output, for a message."""
        size = os.fstat(self._told.fileno()).st_size
        text = os.pread(self._told.fileno(), _MAX_TAIL_BYTES, max(0, size - _MAX_TAIL_BYTES)).decode(errors="replace")
        return f"; it last wrote:\n{text.rstrip()}" if text.strip() else ""

    def relay_lost(self, rank: int) -> None:
        """Handle that the relay of a rank ended before the rank."""
        if self.ended.done():
            self._end_job(rank, f"lost its launcher: {self.ended.result()}")
        else:
            self._end_job(rank, f"was ended by its launcher, {self._name}{self._tail()}")

    def _end_job(self, rank: int, what: str) -> None:
        if not self._over:
            self._job.end(rank, what, 1, at_once=True)

    def give_up(self, why: str) -> None:
        """Abort the launch; nodes that wait for it get the reason."""
        if not self.ended.done():
            self.ended.set_result(why)
        self._signal(signal.SIGTERM)

    def withdraw(self) -> None:
        """Abort the launch of a job that is being ended, if its ranks have not been started."""
        if not self._begun:
            self.give_up("its group was ended before that")

    def close(self) -> None:
        """Clean up after all ranks have ended."""
        self._over = True
        if not self.ended.done():
            self.ended.set_result("its group was closed")
        if not self._pid:
            self._task.cancel()
        self._loop.call_later(_FOR_OWN_END, self._signal, signal.SIGTERM)
        self._loop.call_later(2 * _FOR_OWN_END, self._signal, signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._pid:
            os.kill(self._pid, number)
