"""Processes with control of placement, environment and streams."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from dragon import _core
from dragon.infrastructure.errors import NotSupportedError, ProcessError
from dragon.infrastructure.policy import Policy, PolicyError
from dragon.infrastructure.start_request import UNNAMED, as_name
from dragon.infrastructure.variables import ARGUMENT_DATA
from dragon.lazy_modules import LaterModule
from dragon.native.template import ProcessTemplate
from dragon.runtime import placement
from dragon.runtime import placement as plan
from dragon.runtime.arguments import DEVNULL, PIPE, STDOUT, StreamArgument, checked_arguments, checked_signal
from dragon.runtime.connection import Connection, connect_pipes, own_end
from dragon.runtime.handle import Channel
from dragon.runtime.nodes import node_at
from dragon.runtime.placement import Placed
from dragon.runtime.run import identity
from dragon.runtime.spawning import Started, start

if TYPE_CHECKING:
    from dragon.infrastructure.process_desc import ProcessDescriptor
    from dragon.runtime import processes
else:
    processes = LaterModule("dragon.runtime.processes")

__all__ = ["MSG_DEVNULL", "MSG_PIPE", "MSG_STDOUT", "Popen", "Process", "ProcessTemplate", "current"]

MSG_PIPE, MSG_STDOUT, MSG_DEVNULL = PIPE, STDOUT, DEVNULL
"""dragonhpc's names of PIPE, STDOUT and DEVNULL."""


class Process(ProcessTemplate):
    """One process. Takes the arguments of ProcessTemplate, and `ident` (or `name`), a name that is unique in the run.

    `Process(None, ident=name_or_puid)` is an existing process of the run, which may have ended; ProcessError if there
    is none. If a live process has the name, `Process(target, ident=name)` is that process, with a RuntimeWarning.
    Cannot be subclassed (multiprocessing.Process can). Ranks of MPI jobs are members of a ProcessGroup(pmi=...).

    Examples:
        >>> from dragon.native import Process, Queue
        >>> queue = Queue()
        >>> process = Process(target=queue.put, args=("hello",))
        >>> process.start()
        >>> queue.get(), process.join()
        ('hello', 0)
    """

    def __init_subclass__(cls) -> None:
        raise NotSupportedError("dragon.native.process.Process cannot be subclassed; multiprocessing.Process can")

    def __init__(
        self,
        target: Callable[..., Any] | str | None,
        args: tuple[Any, ...] | list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        cwd: str = ".",
        env: dict[str, str] | None = None,
        ident: str | int | None = None,
        _pmi: object = None,
        stdin: StreamArgument = None,
        stdout: StreamArgument = None,
        stderr: StreamArgument = None,
        policy: Policy | None = None,
        options: object = None,
        *,
        leave_running: bool = False,
        _kind: str = UNNAMED,
        name: str | None = None,
    ) -> None:
        self._started: Started | None = None
        self._found: ProcessDescriptor | None = None
        self._placed: Placed | None = None
        self._creator = 0
        self._connections: dict[int, Connection] = {}
        ident = name if ident is None else ident
        self._ident = ident
        self._name = ident if isinstance(ident, str) else ""
        self._kind = _kind
        if target is None:
            if ident is None:
                raise TypeError("Process() needs a target, or the ident of an existing process")
            self._found = processes.look_up(ident)
            return
        if self._name and _exists(self._name):
            warnings.warn(
                f"a live process {self._name!r} exists already and is returned; the given target is ignored",
                RuntimeWarning,
                stacklevel=2,
            )
            self._found = processes.look_up(self._name)
            return
        super().__init__(
            target, args, kwargs, cwd, env, stdin, stdout, stderr, policy, options, leave_running=leave_running
        )

    @classmethod
    def from_template(cls, template: ProcessTemplate, ident: str | None = None, _pmi: object = None) -> Process:
        """Return a process, not started yet, of the template's description. Raises ProcessError if a live process has
        the name."""
        if ident and _exists(ident):
            raise ProcessError(f"A process {ident!r} already exists in this run")
        values = template.get_sdict()
        values["policy"] = template.policy
        return cls(ident=ident, _pmi=_pmi, **values)

    def start(self) -> None:
        """Start the process.

        Raises OSError if that fails, ProcessError for a placement that is not possible, RuntimeError if it was started
        before.
        """
        self._begin()

    def _begin(self) -> Started:
        if self._found is not None or self._started is not None:
            raise RuntimeError(f"This Process has already been started with puid {self.puid}")
        try:
            placed = placement.place(self.policy)
        except PolicyError as error:
            raise ProcessError(f"process create failed: {error}") from error
        request = self.request(self._name, placed, self._kind)
        self._placed = placed
        if PIPE in (self.stdin, self.stdout, self.stderr):
            self._connections = connect_pipes(request.streams)
        self._started = start(request)
        plan.note(placed, request.name, self.target, request.puid)
        self._creator = request.parent
        return self._started

    def join(self, timeout: float | None = None) -> int | None:
        """Wait for the process to end. Returns its exit code, or None after `timeout` seconds."""
        if self._started is not None:
            return self._started.wait(timeout)
        if self._found is None:
            raise ProcessError("a process must be started before it is joined")
        return processes.join(self.puid, timeout)

    def terminate(self) -> None:
        """Ask the process to end, by SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process, by SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process. Does nothing if it has ended; raises ProcessError if it was not started."""
        sig = checked_signal(sig)
        if self._started is not None:
            self._started.signal(sig)
        elif self._found is not None:
            processes.kill(self.puid, sig)
        else:
            raise ProcessError("a process must be started before it is sent a signal")

    @property
    def puid(self) -> int:
        """The number of the process, unique in the run. Raises ProcessError before the start."""
        if self._started is not None:
            return self._started.puid
        if self._found is not None:
            return self._found.p_uid
        raise ProcessError("the process has not been started")

    @property
    def ident(self) -> str | int | None:
        """The `ident` that was passed: a name, or the puid of an existing process; None if none was passed."""
        return self._ident

    @property
    def name(self) -> str:
        """The name of the process; "dragon_process_<puid>" if none was passed."""
        if self._started is not None:
            return self._started.name
        return self._found.name if self._found is not None else self._name

    @property
    def is_alive(self) -> bool:
        """Whether the process was started and has not ended."""
        return (self._started is not None or self._found is not None) and self.returncode is None

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        if self._started is not None:
            return self._started.wait(0)
        if self._found is not None:
            return processes.look_up(self.puid).ecode
        return None

    exitcode = returncode
    """The same as returncode."""

    @property
    def node(self) -> int:
        """The index of the node on which the process runs. Raises ProcessError before the start."""
        if self._found is not None:
            return self._found.node
        if self._placed is None:
            raise ProcessError("the process has not been started")
        return self._placed.node.index

    @property
    def h_uid(self) -> int:
        """The host id of the process's node. Raises ProcessError before the start, LookupError if the node is lost."""
        return node_at(self.node).h_uid if self._placed is None else self._placed.node.h_uid

    @property
    def stdin_conn(self) -> Connection | None:
        """The connection to the process's stdin if that is a PIPE, else None."""
        return self._connection(0)

    @property
    def stdout_conn(self) -> Connection | None:
        """The connection from which the process's stdout is received, by lines, if that is a PIPE, else None. EOFError
        at the end."""
        return self._connection(1)

    @property
    def stderr_conn(self) -> Connection | None:
        """The connection from which the process's stderr is received, by lines, if that is a PIPE, else None. EOFError
        at the end."""
        return self._connection(2)

    def _connection(self, number: int) -> Connection | None:
        if self._found is not None and self._found.group and number not in self._connections:
            from dragon.runtime.agent_client import ask
            from dragon.runtime.protocol.groups import MemberStream

            name = ask(MemberStream(self._found.group, self.puid, number))
            if name is not None:
                end = own_end(number, name)
                self._connections[number] = _MemberInput(end._out(), self._found) if number == 0 else end
        return self._connections.get(number)

    def children(self) -> list[Process]:
        """Return the processes of the run that this process started."""
        return [Process(None, ident=puid) for puid in processes.children_of(self.puid)]

    def parent(self) -> Process:
        """Return the process that started this one. Raises ProcessError for the head process."""
        parent = self._found.p_p_uid if self._found is not None else self._creator
        if not parent:
            raise ProcessError("the head process was started by no process of the run")
        return Process(None, ident=parent)


class _MemberInput(Connection):
    """The connection to the stdin of a group's member. The group holds such an end too, which is released when the
    first connection is closed."""

    def __init__(self, writer: Channel, member: ProcessDescriptor) -> None:
        super().__init__(None, writer)
        self._member = member

    def __reduce__(self) -> tuple[object, ...]:
        return _MemberInput, (self._out(), self._member)

    def close(self) -> None:
        from dragon.runtime.agent_client import ask
        from dragon.runtime.protocol.groups import EndInput

        super().close()
        ask(EndInput(self._member.group, self._member.p_uid))


def _exists(name: str) -> bool:
    try:
        return processes.look_up(name).ecode is None
    except ProcessError:
        return False


def current() -> Process:
    """Return the calling process."""
    return Process(None, ident=identity().puid)


class Popen:
    r"""An executable that runs, in the manner of subprocess.Popen; `args` does not contain argv[0], which is
    `executable`.

    Attributes:
        PIPE: for a stream: a connection to this process.
        STDOUT: for `stderr`: to the same place as `stdout`.
        DEVNULL: for a stream: nothing is read, and what is written is dropped.
        args: the arguments without argv[0].
        returncode: the exit code that wait() or poll() found last, negative for a signal; None before.

    Examples:
        >>> from dragon.native import Popen
        >>> program = Popen(["hello"], executable="echo", stdout=Popen.PIPE)
        >>> program.stdout.recv(), program.wait()
        ('hello\n', 0)
    """

    PIPE: ClassVar[int] = PIPE
    STDOUT: ClassVar[int] = STDOUT
    DEVNULL: ClassVar[int] = DEVNULL

    def __init__(
        self,
        args: list[str],
        executable: str | None = None,
        stdin: StreamArgument = None,
        stdout: StreamArgument = None,
        stderr: StreamArgument = None,
        preexec_fn: object = None,
        shell: bool = False,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        group: object = None,
        user: object = None,
        proc_name: str | None = None,
        umask: int = -1,
        pipesize: int = -1,
        policy: Policy | None = None,
    ) -> None:
        for name, value in (("preexec_fn", preexec_fn), ("group", group), ("user", user)):
            if value is not None:
                raise NotSupportedError(f"Popen({name}=…) is not offered; start a script that does it")
        args = list(checked_arguments(args))
        if shell:
            executable, args = "/bin/sh", ["-c", " ".join(args) if executable is None else executable, *args]
        elif executable is None:
            executable, args = args[0], args[1:]
        self._process = Process(executable, args, None, cwd or ".", env, proc_name, None, stdin, stdout, stderr, policy)
        self._process._umask = umask
        self._process.start()
        self.args = args
        self.returncode: int | None = None

    @property
    def stdin(self) -> Connection | None:
        """The connection to the process's stdin if that is a PIPE, else None."""
        return self._process.stdin_conn

    @property
    def stdout(self) -> Connection | None:
        """The connection from which the process's stdout is received, by lines, if that is a PIPE, else None."""
        return self._process.stdout_conn

    @property
    def stderr(self) -> Connection | None:
        """The connection from which the process's stderr is received, by lines, if that is a PIPE, else None."""
        return self._process.stderr_conn

    @property
    def puid(self) -> int:
        """The number of the process, unique in the run."""
        return self._process.puid

    @property
    def pid(self) -> int:
        """The process id on the process's node."""
        assert self._process._started is not None
        return self._process._started.pid

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """Raise NotSupportedError: `stdin`, `stdout` and `stderr` are connections, which are used directly."""
        raise NotSupportedError("Popen.communicate() is not offered; use stdin.send(), stdout.recv() and wait()")

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end. Returns the exit code; raises TimeoutError after `timeout` seconds."""
        self.returncode = self._process.join(timeout)
        if self.returncode is None:
            raise TimeoutError(f"{self._process.name} still runs after {timeout} s")
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        self.returncode = self._process.returncode
        return self.returncode

    def send_signal(self, signal: int) -> None:
        """Send a signal to the process."""
        self._process.send_signal(signal)

    def terminate(self) -> None:
        """Ask the process to end, by SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process, by SIGKILL."""
        self._process.kill()


@functools.cache
def argument_data() -> bytes | None:
    """Return the bytes that create_with_argdata() passed to this program; None if there are none."""
    from dragon.native.queue import Empty, Queue

    text = os.environ.get(ARGUMENT_DATA)
    if text is None:
        return None
    try:
        data: bytes = Queue._attached(as_name([int(part) for part in text.split(",")]), False).get_nowait()
    except (_core.DestroyedError, Empty):
        return None  # the bytes were for the process that started this one
    return data


def _dragon_native_python_process_main() -> None:
    """Call the function that create_with_argdata() passed, pickled with its arguments, as examples for dragonhpc do."""
    target, args, kwargs = pickle.loads(argument_data() or b"")
    target(*args, **kwargs)
