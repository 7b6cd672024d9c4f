"""The process that starts user processes and reaps them: single-threaded, with the runtime imported."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import signal
import socket
import time
from typing import NoReturn

import msgspec

from dragon import _core
from dragon.agent.mpi.foreign import is_foreign
from dragon.agent.mpi.segments import remove_segments
from dragon.agent.processes.forking import Forker
from dragon.agent.processes.orphans import become_reaper
from dragon.agent.processes.parents import children_of
from dragon.infrastructure import cpython, variables
from dragon.infrastructure.executables import why_not_executed
from dragon.infrastructure.messages import FAREWELL, SYNCHRONISE, Spawn, decode_spawn
from dragon.infrastructure.signals import PROGRAMS_OWN, set_for_programs
from dragon.infrastructure.system_text import restored
from dragon.runtime.child import find_entry
from dragon.runtime.folder import remove_folder
from dragon.runtime.run import Identity, Run, belong
from dragon.signals import end_with_parent

__all__ = ["Zygote"]

_LARGEST_MESSAGE = 256 * 1024
_ENTRIES = ("dragon.mpbridge.bootstrap:run", "dragon.native.bootstrap:run")
_PRELOADED = (
    "dragon.mpbridge.queues",
    "dragon.mpbridge.synchronize",
    "dragon.native.queue",
    "dragon.native.workers",
)


class Zygote:
    """Serves start requests, reaps ended processes, and ends all of them when the agent ends."""

    def __init__(self, requests: socket.socket, agent: socket.socket, run: Run) -> None:
        self.requests = requests
        self.agent = agent
        self.run_info = run
        self.taken_leave = False  # whether the agent ends in order
        self.abandoned = False  # whether it died, though the system may still show it
        self.since = time.time()

    def serve_for_ever(self) -> NoReturn:
        """Serve until the agent closes its end or dies."""
        become_reaper()
        end_with_parent(signal.SIGTERM)
        # Blocked, not handled: a child unblocks them with one call, and inherits no handler.
        signals = _core.signal_descriptor([signal.SIGCHLD, signal.SIGTERM], [*PROGRAMS_OWN, signal.SIGHUP])
        set_for_programs(signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # requests say who ignores it
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for entry in _ENTRIES:
            find_entry(entry)
        for module in _PRELOADED:
            importlib.import_module(module)
        # The zygote ends by os._exit(), and run_exit_handlers() calls that of multiprocessing itself; the one of the
        # bindings makes every child copy pages.
        cpython.forget_exit_handlers()
        self.server = _core.ForkServer(self.requests.fileno(), self.agent.fileno(), signals)
        self.server.set_output(bool(self.run_info.label), forwards=False)
        self.forker = Forker(self.server, self._environment)
        gc.collect()
        gc.freeze()
        while (event := self.server.next()) != "end":
            if event == "child":
                self.forker.become()
            elif event == "request":
                self.start()
            elif event == "refused":
                _warn(f"a start request was dropped: {self.server.why()}")
            elif not self._heard_from_agent():
                break
        self.end()

    def _heard_from_agent(self) -> bool:
        """Handle a message of the agent. Returns False if the agent has ended."""
        try:
            data = self.agent.recv(_LARGEST_MESSAGE)
        except ConnectionResetError:  # it ended before it read all that was reported; what it said itself follows
            data = self.agent.recv(_LARGEST_MESSAGE)
        if data == FAREWELL:
            self.taken_leave = True
        elif data == SYNCHRONISE:
            self.server.synchronise()
        elif data:
            belong(self.run_info, **msgspec.msgpack.decode(data))
            self.server.set_output(bool(self.run_info.label), forwards=True)
        self.abandoned = not data and not self.taken_leave
        return bool(data)

    # ---- starting

    def start(self) -> None:
        """Start the process of the received request; its record shows the outcome."""
        server = self.server
        request = decode_spawn(server.request())
        try:
            if request.executable:
                server.started(self._execute(request), forked=False)
            else:
                server.started(self.forker.start(request), forked=True)
        except Exception as error:  # only this process fails to start
            number = getattr(error, "errno", None) or errno.EIO
            server.failed(number, _wording(error, request.executable))

    def _execute(self, request: Spawn) -> int:
        environment = self._environment(request)
        for number, variable in enumerate(request.descriptor_variables, 3):
            environment[variable] = str(number)
        return _core.start_executable(
            executable=restored(request.executable),
            arguments=list(map(restored, [request.executable, *request.arguments])),
            environment=[f"{name}={value}" for name, value in environment.items()],
            folder=restored(request.folder),
            descriptors=self.server.descriptors(),
            cpus=request.cpus,
            limits=request.limits,
            signals=request.signals,
            death_signal=signal.SIGKILL,
            # Processes that the main program leaves end with the run: it need not adopt orphans.
            reaper=request.name != "head",
            detached=False,
        )

    def _environment(self, request: Spawn) -> dict[str, str]:
        changes = request.environment
        environment = {} if "" in changes else dict(os.environ)
        for sent, value in changes.items():
            name = restored(sent)
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = restored(value)
        me = Identity(puid=request.puid, name=request.name, parent=request.parent, group=request.group)
        environment[variables.RUN] = str(self.run_info.folder)
        # Its children must not inherit variables of its MPI job and its argument data.
        handed_on = [name for name in changes if not is_foreign(name) and name != variables.ARGUMENT_DATA]
        environment[variables.PROCESS] = msgspec.json.encode([me, self.server.slot(), handed_on]).decode()
        return environment

    # ---- ending

    def end(self) -> NoReturn:
        """End every descendant: with SIGTERM, and SIGKILL after the grace."""
        for pid in self.server.running():
            _signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + variables.grace()
        while self.server.running() and time.monotonic() < deadline:
            self.server.reap()
            time.sleep(0.002)
        while True:
            for pid in children_of(os.getpid()):
                _signal(pid, signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
            self.server.reap()
        if self.abandoned or not self.run_info.is_alive():
            # The agent could not do this.
            remove_folder(self.run_info.folder)
            remove_segments(self.since)
        os._exit(0)


def _wording(error: Exception, executable: str) -> str:
    if executable and isinstance(error, OSError) and error.filename == restored(executable):
        return f"{error.filename}: {why_not_executed(error.filename, error.errno or 0)}"
    return str(error)


def _warn(text: str) -> None:
    from dragon.runtime.log import runtime_log  # not loaded before: every module here makes every fork dearer

    runtime_log("zygote").warning(text)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
