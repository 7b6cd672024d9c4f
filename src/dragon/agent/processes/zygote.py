"""The process that starts user processes and reaps them: single-threaded, with the runtime imported.

A Python process is a fork, or a new interpreter if a fork would not be safe.
"""

from __future__ import annotations

import _random
import errno
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from dragon import _core, cpython
from dragon.agent.mpi.segments import is_foreign, remove_segments
from dragon.agent.processes.parents import FAREWELL, PREPARE, SYNCHRONISE, become_reaper, children_of, has_children
from dragon.infrastructure import variables
from dragon.infrastructure.signals import PROGRAMS_OWN, set_for_programs
from dragon.infrastructure.system import restored, why_not_executed
from dragon.runtime import child
from dragon.runtime.child import find_entry
from dragon.runtime.folder import remove_folder
from dragon.runtime.interpreter import Surroundings, is_fit, take_over
from dragon.runtime.run import Identity, Run, belong
from dragon.signals import end_with_parent

_THREADS_END_WITHIN_S = 0.2  # seconds
_FORK_ENDS_WITHIN_S = 10.0  # seconds
# jemalloc's thread, which pyarrow starts, returns memory to the system. jemalloc prepares itself for each fork.
_ALLOWING_FORKS = {"jemalloc_bg_thd"}


def unsafe_to_fork() -> str:
    """Return why a fork of this process could hang or break its child; "" if it could not."""
    if any(os.path.realpath(f"/proc/self/fd/{fd}").startswith("/dev/nvidia") for fd in os.listdir("/proc/self/fd")):
        return "opened a GPU"
    if not _threads():
        return ""
    # Some libraries (OpenBLAS) end their threads before a fork and start them again when needed: try it.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    if not _ends(pid):
        return f"registered functions for forks that do not return within {_FORK_ENDS_WITHIN_S:g} s in a child"
    # A joined thread may still be visible for a moment.
    deadline = time.monotonic() + _THREADS_END_WITHIN_S
    while (left := _threads()) and time.monotonic() < deadline:
        time.sleep(0.001)
    if not left:
        return ""
    what = "a thread that outlives" if len(left) == 1 else f"{len(left)} threads that outlive"
    return f"started {what} a fork ({', '.join(sorted(set(left)))})"


def _threads() -> list[str]:
    """Return the names of this process's other threads, except for those of libraries that allow forks."""
    own, others = "", []
    names = {str(thread.native_id): thread.name for thread in threading.enumerate()}  # the kernel has "python3" for all
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        if task.name == str(os.getpid()):
            own = name
        elif name not in _ALLOWING_FORKS:
            others.append(names.get(task.name, name))
    for _ in range(min(others.count(own), _threads_of_numexpr())):
        others.remove(own)
    return others


def _threads_of_numexpr() -> int:
    """Return how many threads numexpr has, which pandas and PyTables import. They have no name of their own."""
    numexpr = sys.modules.get("numexpr")
    threads = int(numexpr.get_num_threads()) if numexpr is not None and hasattr(numexpr, "get_num_threads") else 1
    return threads if threads > 1 else 0


def _ends(pid: int) -> bool:
    """Wait for a child that only ends. Returns False, and kills it, if it does not."""
    deadline = time.monotonic() + _FORK_ENDS_WITHIN_S
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


_MOST_DRAWN = 1000  # times 624 numbers that a main program may draw from NumPy at import, without being taken as seeded

_RANDOM = cpython.random_generator()
# random.seed(), which `random` calls after a fork, without the Python frames, whose pages would be copied.
_reseed = _random.Random.seed.__get__(_RANDOM)


class Asked(NamedTuple):
    """What starting the process of a request takes; see infrastructure/messages.py."""

    name: str
    puid: int
    parent: int
    group: int
    main: tuple[str, str] | None
    surroundings: bytes
    executable: str
    arguments: list[str]
    folder: str
    environment: dict[str, str | None]
    cpus: list[int]
    limits: list[int]
    signals: list[int]
    descriptor_variables: list[str]


class Forker:
    """Starts the Python processes that are requested from the server."""

    def __init__(self, server: _core.ForkServer, environment: Callable[[Asked], dict[str, str]]) -> None:
        self._server = server
        self._environment = environment
        self._main: tuple[str, str] | None = None
        self._surroundings = b""
        self._safe = True
        self._told = False
        self._foreign_hooks = False  # whether modules outside the standard library have registered hooks for forks
        self._reseed_numpy: Callable[[], Any] | None = None

    def start(self, request: Asked) -> int:
        if not self._is_fit(request):
            return self._start_fresh(request)
        if request.main is not None and self._main is None:
            self._load_main(request)
            if not self._is_fit(request, loaded=True):
                self._surroundings = b""  # matches no request for a fork
                return self._start_fresh(request)
        if not self._safe or request.main != self._main:
            return self._start_fresh(request)
        if request.surroundings != self._surroundings:
            take_over(request.surroundings)
            self._surroundings = request.surroundings
        pid = os.fork() if self._foreign_hooks else _core.plain_fork()
        if pid == 0:
            self.become()
        gc.freeze()
        if not self._foreign_hooks:
            self._server.fork_alike()
        return pid

    def become(self) -> NoReturn:
        """Become the process of the server's request, in a child of the zygote."""
        # Nothing may return into the zygote's loop from here.
        try:
            task = self._server.enter_child()
            cpython.renew_native_id()
            if not self._foreign_hooks:
                _reseed()
            if self._reseed_numpy is not None:
                self._reseed_numpy()
            child.run_forked(*task)
        except BaseException as error:
            child.report(error)
        finally:
            os._exit(1)

    def _is_fit(self, request: Asked, loaded: bool = False) -> bool:
        """Return whether a fork is sufficient; checked again after the main program's imports were `loaded`."""
        if request.surroundings == self._surroundings and not loaded:
            return True
        theirs = Surroundings.decode(request.surroundings)
        fit = is_fit(theirs)
        if not fit and not self._told:
            from dragon.runtime.log import runtime_log  # not loaded before: every module here makes every fork dearer

            self._told = True
            runtime_log("zygote").info(
                "%s starts as a fresh interpreter, for what is read when one starts: %s",
                request.name,
                " ".join([*theirs.options, *theirs.variables]),
            )
        return fit

    # ---- the main program

    def _load_main(self, request: Asked) -> None:
        """Import the main program, once, so that its imports are shared by all children."""
        self._main = request.main
        take_over(request.surroundings)
        self._surroundings = request.surroundings
        self._watch_hooks()
        assert request.main is not None
        try:
            child.import_main(request.main)
        except BaseException as error:
            # The started process raises the same error, where the user sees it.
            self._give_up_forking(" ".join(f"raised {type(error).__name__}: {error}".split()))
        else:
            reason = unsafe_to_fork()
            if reason:
                self._give_up_forking(reason)
        self._server.disown()  # processes that the import started belong to the main program
        self._reseed_numpy = _numpy_seed()
        # The second number of a pair of which the import has drawn one.
        _RANDOM.gauss_next = None  # type: ignore[attr-defined]
        # Otherwise every child would print the buffered output of the import again.
        cpython.flush_streams()
        gc.freeze()

    def _watch_hooks(self) -> None:
        """Detect every registration with os.register_at_fork from now on."""
        register = os.register_at_fork

        def register_at_fork(**hooks: Any) -> None:
            # Those of the standard library renew locks, which are free here.
            module = sys._getframe(1).f_globals.get("__name__", "")
            self._foreign_hooks |= module.partition(".")[0] not in sys.stdlib_module_names
            register(**hooks)

        os.register_at_fork = register_at_fork

    def _give_up_forking(self, reason: str) -> None:
        from dragon.runtime.log import runtime_log  # not loaded before: every module here makes every fork dearer

        self._safe = False
        runtime_log("zygote").warning(
            "processes start as fresh interpreters, which takes longer: importing the main program %s", reason
        )

    def _start_fresh(self, request: Asked) -> int:
        from dragon.runtime.spawning import in_memory  # seldom needed

        options = Surroundings.decode(request.surroundings).options
        descriptors = self._server.descriptors()
        path = str(Path(child.__file__).parents[2])
        code = f"import sys; sys.path.append({path!r}); from dragon.runtime.child import main_fresh; main_fresh(3)"
        environment = self._environment(request)
        environment["DRAGON_DESCRIPTORS"] = str(len(descriptors) - 3)
        with in_memory(self._server.request()) as memory:
            return _core.start_executable(
                executable=sys.executable,
                arguments=[sys.executable, *options, "-c", code],
                environment=[f"{name}={value}" for name, value in environment.items()],
                folder=restored(request.folder),
                descriptors=[*descriptors[:3], memory.fileno(), *descriptors[3:]],
                cpus=request.cpus,
                limits=request.limits,
                signals=request.signals,
                death_signal=signal.SIGKILL,
                reaper=True,
            )


def _numpy_seed() -> Callable[[], Any] | None:
    """Return NumPy's function that seeds its global generator; None if the program has seeded that itself."""
    module = sys.modules.get("numpy.random.mtrand")
    if module is None:
        return None
    bits = module._rand._bit_generator
    sequence = getattr(bits, "_seed_seq", None)  # the seed from the system; None if it was seeded otherwise
    if sequence is None:
        return None
    key = bits.state["state"]["key"]
    unseeded = type(bits)(sequence)
    for _ in range(_MOST_DRAWN):
        if (unseeded.state["state"]["key"] == key).all():
            seed: Callable[[], Any] = module.seed
            return seed
        unseeded.random_raw(len(key))
    return None  # its state was set


_LARGEST_MESSAGE = 256 * 1024
_ENTRIES = ("dragon.runtime.child:run_multiprocessing", "dragon.runtime.child:run")
_PRELOADED = ("dragon.mpbridge.queues", "dragon.mpbridge.synchronize", "dragon.native.queue", "dragon.native.workers")


# What processes need that ask the agent: imported once one has, and when the zygote is idle, or if there are several
# nodes.
_FOR_REQUESTS = ("dragon.runtime.agent_client", "dragon.runtime.protocol.objects", "dragon.infrastructure.node_desc")


importlib.import_module("dragon.mpbridge.context").install()  # which the command `dragon` leaves out
for _entry in _ENTRIES:
    find_entry(_entry)
for _module in _PRELOADED:
    importlib.import_module(_module)


def _freeze() -> None:
    """Exempt what exists from garbage collection, which would write to the pages that children share."""
    gc.freeze()
    gc.enable()


def _import_for_requests() -> None:
    for module in _FOR_REQUESTS:
        importlib.import_module(module)
    _freeze()


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
        # The zygote ends by os._exit(), and run_exit_handlers() calls that of multiprocessing itself; the one of the
        # bindings makes every child copy pages.
        cpython.forget_exit_handlers()
        child.write_whole_lines()
        _freeze()
        self.server = _core.ForkServer(self.requests.fileno(), self.agent.fileno(), signals)
        self.server.set_output(bool(self.run_info.label), forwards=False)
        self.forker = Forker(self.server, self._environment)
        while (event := self.server.next()) != "end":
            if event == "child":
                self.forker.become()
            elif event == "request":
                self.start()
            elif event == "idle":
                _import_for_requests()
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
        elif data == PREPARE:
            self.server.await_idle()
        elif data:
            _import_for_requests()  # there are several nodes
            from dragon.infrastructure.structs import msgspec

            belong(self.run_info, **msgspec.msgpack.decode(data))
            self.server.set_output(bool(self.run_info.label), forwards=True)
        self.abandoned = not data and not self.taken_leave
        return bool(data)

    # ---- starting

    def start(self) -> None:
        """Start the process of the received request; its record shows the outcome."""
        server = self.server
        request = Asked(*server.fields())
        try:
            if request.executable:
                server.started(self._execute(request), forked=False)
            else:
                server.started(self.forker.start(request), forked=True)
        except Exception as error:  # only this process fails to start
            number = getattr(error, "errno", None) or errno.EIO
            server.failed(number, _wording(error, request.executable))

    def _execute(self, request: Asked) -> int:
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
        )

    def _environment(self, request: Asked) -> dict[str, str]:
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
        run = self.run_info
        environment[variables.PROCESS] = json.dumps(
            [str(run.folder), [me, self.server.slot(), handed_on], run.agent, _core.arena_fd(), run.node]
        )
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
        while has_children():
            for pid in children_of(os.getpid()):
                _signal(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
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
