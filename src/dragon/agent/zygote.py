"""The process that starts user processes and reaps them: single-threaded, with the runtime loaded."""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from dragon import _core
from dragon.agent.forking import Forker
from dragon.agent.mpi.foreign import is_foreign
from dragon.agent.mpi.segments import remove_segments
from dragon.agent.orphans import become_reaper
from dragon.infrastructure import variables
from dragon.infrastructure.messages import FAREWELL, SYNCHRONISE, Name, Output, Spawn, decode_spawn, encode
from dragon.infrastructure.signals import PR_SET_PDEATHSIG, PROGRAMS_OWN, set_for_programs
from dragon.runtime.folder import remove_folder
from dragon.runtime.handle import Words
from dragon.runtime.run import Identity, Run, belong
from dragon.runtime.spawning import CODE, ERROR, EXITED, FAILED, PID, RUNNING, STATUS

__all__ = ["Zygote", "children_of"]

_GRACE = 3.0
_LARGEST_REQUEST = 256 * 1024
_MOST_DESCRIPTORS = 250
_MOST_UNTOLD = 32
_PIPED = ("pipe", "tee", "forward")
_PRELOADED = (
    "dragon.mpbridge.bootstrap",
    "dragon.mpbridge.queues",
    "dragon.mpbridge.synchronize",
    "dragon.native.bootstrap",
    "dragon.native.queue",
    "dragon.native.workers",
)


class Zygote:
    """Serves start requests, reaps what ends, and ends everything when the agent is gone."""

    def __init__(self, requests: socket.socket, agent: socket.socket, run: Run) -> None:
        self.requests = requests
        self.agent = agent
        self.run_info = run
        self.null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.untold: list[dict[str, Any]] = []
        self.records: dict[int, tuple[Spawn, Words]] = {}
        self.labelled: set[int] = set()  # pipes whose lines get labels
        self.forwards = False  # whether output goes to the front end of a run of several nodes
        self.taken_leave = False  # the agent ends in order
        self.abandoned = False  # it is gone, though the system may still show it
        self.since = time.time()

    def serve_for_ever(self) -> NoReturn:
        """Serve until the agent closes its end or dies."""
        become_reaper()
        _core.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        # Blocked, not handled: a child has them back with one call, and no handler of ours.
        signals = _core.signal_descriptor([signal.SIGCHLD, signal.SIGTERM], [*PROGRAMS_OWN, signal.SIGHUP])
        set_for_programs(signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for module in _PRELOADED:
            importlib.import_module(module)
        requests, agent = self.requests.fileno(), self.agent.fileno()
        sources = [requests, agent, signals]
        self.umask = _core.current_umask()
        self.limits = _core.current_limits()
        self.forker = Forker([*sources, self.null], self._environment)
        gc.collect()
        gc.freeze()
        events = select.poll()
        for source in sources:
            events.register(source, select.POLLIN)
        ending = heard = False
        while not ending:
            ready = [fd for fd, _ in events.poll(0 if self.untold else None)]
            if not ready:
                self._tell_all()
            if agent in ready and not heard:
                # What the run is like was said before anything was asked for.
                heard = True
                ready.remove(agent)
                ending |= not self._heard_from_agent()
            if requests in ready:
                self.serve()
            if agent in ready:
                ending |= not self._heard_from_agent()
            if signals in ready:
                ending |= self._terminated(signals)
                self.reap()
        self.end()

    def _heard_from_agent(self) -> bool:
        """Do what the agent says; False if it is gone."""
        try:
            data = self.agent.recv(_LARGEST_REQUEST)
        except ConnectionResetError:  # it ended before it read all that was reported; what it said itself follows
            data = self.agent.recv(_LARGEST_REQUEST)
        if data == FAREWELL:
            self.taken_leave = True
        elif data == SYNCHRONISE:
            self.reap()
            self.tell("synchronised")
            self._tell_all()
        elif data:
            belong(self.run_info, **msgspec.msgpack.decode(data))
            self.forwards = True
        self.abandoned = not data and not self.taken_leave
        return bool(data)

    @staticmethod
    def _terminated(signals: int) -> bool:
        """Read the signals that came; whether one of them ends the zygote."""
        data = os.read(signals, 128 * 64)
        return any(data[i] == signal.SIGTERM for i in range(0, len(data), 128))

    def tell(self, event: str, descriptors: list[int] | None = None, **values: Any) -> None:
        """Report to the agent; several events together when there are many, those with descriptors at once."""
        self.untold.append({"event": event, **values})
        if descriptors or len(self.untold) >= _MOST_UNTOLD:
            self._tell_all(descriptors)

    def _tell_all(self, descriptors: list[int] | None = None) -> None:
        if not self.untold:
            return
        events, self.untold = self.untold, []
        try:
            socket.send_fds(self.agent, [encode(events)], descriptors or [])
        except (BrokenPipeError, ConnectionResetError):
            return  # the agent is gone; the loop sees that next

    # ---- starting

    def serve(self) -> None:
        """Handle one request. A malformed one is logged and dropped."""
        data, descriptors, _, _ = socket.recv_fds(self.requests, _LARGEST_REQUEST, _MOST_DESCRIPTORS)
        try:
            request = decode_spawn(data)
            record = Words._attached(request.record)
        except (msgspec.MsgspecError, _core.DestroyedError) as error:
            from dragon.runtime.log import runtime_log  # not loaded before: every module here makes every fork dearer

            runtime_log("zygote").warning("a start request was dropped: %s", error)
        else:
            self.start(request, record, descriptors)
        finally:
            for fd in descriptors:
                os.close(fd)

    def start(self, request: Spawn, record: Words, descriptors: list[int]) -> None:
        """Start the process of a request; its record says how that went."""
        slot = _core.reserve_slot()
        opened: list[int] = []
        os.umask(request.umask if request.umask >= 0 else self.umask)
        if request.limits == self.limits:
            request.limits = []
        try:
            for name in self._attachments(request):
                _core.attach_for(slot, *name)
            streams = self._streams(request, descriptors[:3], opened)
            if request.executable:
                pid = self._execute(request, slot, [*streams, *descriptors[3:]])
            else:
                pid = self.forker.start(request, slot, [*streams, *descriptors[3:]])
            self._publish(request, record, slot, pid)
        except (OSError, _core.DestroyedError, MemoryError) as error:
            _core.fill_slot(slot, _NO_PROCESS)
            _core.reap(_NO_PROCESS)
            record[ERROR] = getattr(error, "errno", None) or 5
            record[STATUS] = FAILED
            self.tell("failed", puid=request.puid, group=request.group, text=str(error))
        finally:
            for fd in opened:
                os.close(fd)

    def _publish(self, request: Spawn, record: Words, slot: int, pid: int) -> None:
        (_core.fill_slot if request.executable else _core.promise_slot)(slot, pid)
        self.records[pid] = (request, record)
        record[PID] = pid
        record[STATUS] = RUNNING
        self.tell(
            "started",
            puid=request.puid,
            pid=pid,
            name=request.name,
            parent=request.parent,
            group=request.group,
            record=request.record,
        )

    @staticmethod
    def _attachments(request: Spawn) -> list[Name]:
        return request.attached + ([request.payload_in] if request.payload_in else [])

    def _streams(self, request: Spawn, given: list[int], opened: list[int]) -> list[int]:
        """Descriptors for 0, 1 and 2; what is opened here is added to `opened`."""
        result = list(given)
        for number, output in enumerate(request.streams or [Output()] * 3):
            if output.kind == "null":
                result[number] = self.null
            elif output.kind == "stdout":
                result[number] = result[1]
            elif output.kind == "file":
                path = os.path.join(request.folder or ".", output.path)
                result[number] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
                opened.append(result[number])
            elif output.kind in ("pipe", "tee", "forward") or (
                number and self.run_info.label and output.kind == "inherit"
            ):
                result[number] = self._pipe(request, number, output, given[number], opened)
        return result

    def _pipe(self, request: Spawn, number: int, output: Output, given: int, opened: list[int]) -> int:
        reading, writing = os.pipe()
        opened += [reading, writing]
        passed_on = [] if output.kind in ("pipe", "forward") else [given]
        if output.kind != "pipe":
            # What a labelled process passes on to its children is a pipe of ours: they go past it.
            if passed_on and _inode(given) in self.labelled:
                passed_on = [] if self.forwards else [number]
            if self.run_info.label:
                self.labelled.add(_inode(reading))
        theirs, ours = (reading, writing) if number == 0 else (writing, reading)
        self.tell(
            "stream",
            [ours, *passed_on],
            puid=request.puid,
            name=request.name,
            number=number,
            channel=output.channel,
            group=request.group,
        )
        return theirs

    def _execute(self, request: Spawn, slot: int, streams: list[int]) -> int:
        environment = self._environment(request, slot)
        for number, variable in enumerate(request.descriptor_variables, 3):
            environment[variable] = str(number)
        return _core.start_executable(
            executable=request.executable,
            arguments=[request.executable, *request.arguments],
            environment=[f"{name}={value}" for name, value in environment.items()],
            folder=request.folder,
            descriptors=streams,
            cpus=request.cpus,
            limits=request.limits,
            death_signal=signal.SIGKILL,
            detached=False,
        )

    def _environment(self, request: Spawn, slot: int) -> dict[str, str]:
        changes = request.environment
        environment = {} if "" in changes else dict(os.environ)
        for name, value in changes.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        me = Identity(puid=request.puid, name=request.name, parent=request.parent, group=request.group)
        environment[variables.RUN] = str(self.run_info.folder)
        # What it starts is no rank of its job, and was not given its data.
        handed_on = [name for name in changes if not is_foreign(name) and name != variables.ARGUMENT_DATA]
        environment[variables.PROCESS] = msgspec.json.encode([me, slot, 0, handed_on]).decode()
        return environment

    # ---- ending

    def reap(self) -> None:
        """Record the end of every child that has ended, and free what it left in the arena."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            _core.reap(pid)
            if pid in self.records:
                request, record = self.records.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                record[CODE] = code % 2**64
                record[STATUS] = EXITED
                self.tell("exited", puid=request.puid, code=code, group=request.group)
                record._close()

    def end(self) -> NoReturn:
        """Stop every process below this one: first asked, after a while killed."""
        for pid in self.records:
            _signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE
        while self.records and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.002)
        while True:
            for pid in children_of(os.getpid()):
                _signal(pid, signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
            self.reap()
        if self.abandoned or not self.run_info.is_alive():
            # The agent did not come to it.
            remove_folder(self.run_info.folder)
            remove_segments(self.since)
        os._exit(0)


_NO_PROCESS = 2**22 + 1  # above the largest process id there can be


def _inode(fd: int) -> int:
    return os.fstat(fd).st_ino


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def children_of(parent: int) -> list[int]:
    """Process ids of a process's children."""
    result = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                result.append(int(entry))
    return result
