"""Processes with control of placement, environment and streams."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, ClassVar

from dragon.globalservices import process as process_service
from dragon.globalservices.process import ProcessError
from dragon.infrastructure.errors import NotSupportedError
from dragon.infrastructure.messages import Output, Spawn
from dragon.infrastructure.policy import Policy, PolicyError
from dragon.infrastructure.process_desc import ProcessDescriptor
from dragon.native.bootstrap import write_call
from dragon.runtime import placement, plan
from dragon.runtime.agent_client import ask
from dragon.runtime.connection import Connection, Pipe
from dragon.runtime.handle import Words
from dragon.runtime.nodes import node_at
from dragon.runtime.placement import Placed
from dragon.runtime.run import identity, this_run
from dragon.runtime.spawning import Started, environment_changes, new_request, prepare_call, start

__all__ = ["MSG_DEVNULL", "MSG_PIPE", "MSG_STDOUT", "Popen", "Process", "ProcessTemplate", "current"]

PIPE, STDOUT, DEVNULL = -1, -2, -3
MSG_PIPE, MSG_STDOUT, MSG_DEVNULL = PIPE, STDOUT, DEVNULL

StreamArgument = int | str | None
_STREAMS = ("stdin", "stdout", "stderr")


class ProcessTemplate:
    """A description of a process, from which any number can be started.

    Args:
        target: a callable, or the name of an executable (as given, in PATH, or in `cwd`).
        args, kwargs: its arguments; of any size.
        cwd: its working directory; "." is the creator's.
        env: variables to set on top of the creator's environment.
        stdin, stdout, stderr: None (the creator's), PIPE, DEVNULL, a file to append to, for stderr STDOUT.
        policy: its placement.

    Raises TypeError and ValueError for arguments that make no sense, AttributeError for an executable that does not
    exist, PermissionError for a file that may not be run, FileNotFoundError for a `cwd` that does not exist, and what
    pickle raises for a callable or arguments that cannot be sent.
    """

    def __init__(
        self,
        target: Callable[..., Any] | str,
        args: tuple[Any, ...] | list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        cwd: str = ".",
        env: dict[str, str] | None = None,
        stdin: StreamArgument = None,
        stdout: StreamArgument = None,
        stderr: StreamArgument = None,
        policy: Policy | None = None,
        options: Any = None,
    ) -> None:
        self.is_python = callable(target)
        if not self.is_python and not isinstance(target, (str, os.PathLike)):
            raise TypeError(f"target must be callable or the name of an executable, not {target!r}")
        if policy is not None and not isinstance(policy, Policy):
            raise TypeError(f"policy must be a Policy, not {policy!r}")
        self.args = tuple(args or ())
        self.kwargs = dict(kwargs or {})
        self.cwd = os.path.abspath(os.fspath(cwd))
        if not os.path.isdir(self.cwd):
            raise FileNotFoundError(2, "the working directory of a process does not exist", self.cwd)
        self.env = _checked_environment(env)
        self.stdin = _checked_stream("stdin", stdin)
        self.stdout = _checked_stream("stdout", stdout)
        self.stderr = _checked_stream("stderr", stderr)
        self.policy = policy
        self.options = options
        self.target: Callable[..., Any] | str
        if self.is_python:
            self.target = target
        else:
            self.target = placement.search_executable(str(target), self.cwd)
            if not os.access(self.target, os.X_OK) and not self.target.endswith(".py"):
                raise PermissionError(13, "this file may not be executed (chmod +x)", self.target)

    @property
    def argdata(self) -> bytes | None:
        """The call as bytes; None for an executable."""
        return write_call(self._callable(), self.args, self.kwargs) if self.is_python else None

    def _callable(self) -> Callable[..., Any]:
        assert callable(self.target)
        return self.target

    def get_original_python_parameters(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """(target, args, kwargs) of a Python process. Raises ValueError for an executable."""
        if not self.is_python:
            raise ValueError(f"{self.target} is an executable, not a Python function")
        return self._callable(), self.args, self.kwargs

    def get_sdict(self) -> dict[str, Any]:
        """The description as a dict, which from_sdict() reads."""
        names = ("target", "args", "kwargs", "cwd", "env", "stdin", "stdout", "stderr", "policy", "options")
        values = {name: getattr(self, name) for name in names}
        values["policy"] = self.policy.get_sdict() if self.policy else None
        return values

    @property
    def sdesc(self) -> dict[str, Any]:
        """The same as get_sdict()."""
        return self.get_sdict()

    @classmethod
    def from_sdict(cls, sdict: dict[str, Any]) -> ProcessTemplate:
        """The template that get_sdict() described."""
        values = dict(sdict)
        if values["policy"] is not None:
            values["policy"] = Policy.from_sdict(values["policy"])
        return ProcessTemplate(**values)

    def start(self) -> None:
        """A template starts nothing: Process.from_template(template).start() does."""
        raise NotSupportedError("a template cannot be started; use Process.from_template(template)")

    def request(self, name: str, placed: Placed | None = None) -> tuple[Spawn, Words]:
        """A request for one process of this description, and its record; without a place, that is added later."""
        request, record = new_request(name, folder=self.cwd, streams=self._outputs())
        request.environment = environment_changes(this_run(), self.env)
        if placed is not None:
            request.node, request.cpus = placed.node.index, placed.mask
            request.environment.update(self.environment_of(placed))
        if self.is_python:
            prepare_call(
                request, "dragon.native.bootstrap:run", lambda: write_call(self._callable(), self.args, self.kwargs)
            )
        else:
            executable, arguments = self._command()
            request.executable, request.arguments = executable, arguments
        return request, record

    def environment_of(self, placed: Placed) -> dict[str, str]:
        """What the place adds to the environment; what the user set stays."""
        return {key: value for key, value in placed.environment.items() if key not in self.env}

    def _command(self) -> tuple[str, list[str]]:
        target = str(self.target)
        arguments = [os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in self.args]
        if os.access(target, os.X_OK):
            return target, arguments
        return sys.executable, [target, *arguments]

    def _outputs(self) -> list[Output]:
        return [_output(getattr(self, name)) for name in _STREAMS]


def _output(stream: StreamArgument) -> Output:
    if isinstance(stream, str):
        return Output("file", stream)
    return Output({None: "inherit", PIPE: "pipe", STDOUT: "stdout", DEVNULL: "null"}[stream])


def _checked_stream(name: str, value: StreamArgument) -> StreamArgument:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value == "":
        raise ValueError(f"{name} file path must be non-empty")
    if isinstance(value, str) and name != "stdin":
        return value
    allowed = (None, PIPE, DEVNULL, STDOUT) if name == "stderr" else (None, PIPE, DEVNULL)
    if value not in allowed:
        raise ValueError(f"{name} cannot be {value!r}")
    return value


def _checked_environment(env: dict[str, str] | None) -> dict[str, str]:
    for key, value in (env or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"the environment must map strings to strings; {key!r} is set to {value!r}")
    return dict(env or {})


def connect_pipes(request: Spawn) -> dict[str, Connection]:
    """Make the connections of the streams that are to be PIPEs; the request then names their other ends."""
    ends = {}
    for number, output in enumerate(request.streams):
        if output.kind != "pipe":
            continue
        reading, writing = Pipe(duplex=False)
        ours, theirs = (writing, reading) if number == 0 else (reading, writing)
        channel = theirs._reader if number == 0 else theirs._writer
        assert channel is not None
        # Until the agent is attached, as a message would: the end that we drop here must not look closed.
        channel._send()
        output.channel = channel._name()
        theirs.close()
        ends[_STREAMS[number]] = ours
    return ends


class Process(ProcessTemplate):
    """One process. Takes what ProcessTemplate takes, and `ident`, a name of its own.

    `Process(None, ident=name_or_puid)` is an existing process of the run, which may have ended; ProcessError if there
    is none. Cannot be subclassed (multiprocessing.Process can).
    """

    _by_puid: ClassVar[dict[int, Process]] = {}

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
        _pmi: Any = None,
        stdin: StreamArgument = None,
        stdout: StreamArgument = None,
        stderr: StreamArgument = None,
        policy: Policy | None = None,
        options: Any = None,
    ) -> None:
        self._started: Started | None = None
        self._found: ProcessDescriptor | None = None
        self._placed: Placed | None = None
        self._creator = 0
        self._connections: dict[str, Connection] = {}
        self._name = ident if isinstance(ident, str) else ""
        if target is None:
            if ident is None:
                raise TypeError("Process() needs a target, or the ident of an existing process")
            self._found = process_service.query(ident)
            return
        if self._name and _exists(self._name):
            raise ProcessError(f"A process {self._name!r} already exists in this run")
        super().__init__(target, args, kwargs, cwd, env, stdin, stdout, stderr, policy, options)

    @classmethod
    def from_template(cls, template: ProcessTemplate, ident: str | None = None, _pmi: Any = None) -> Process:
        """A process of that description. Raises ProcessError if the name is taken."""
        values = template.get_sdict()
        values["policy"] = template.policy
        return cls(ident=ident, _pmi=_pmi, **values)

    def start(self) -> None:
        """Start it. Raises OSError where that fails, RuntimeError the second time."""
        if self._found is not None or self._started is not None:
            raise RuntimeError(f"This Process has already been started with puid {self.puid}")
        try:
            placed = placement.place(self.policy)
        except PolicyError as error:
            raise ProcessError(f"process create failed: {error}") from error
        request, _record = self.request(self._name, placed)
        plan.note(placed, request.name, plan.name_of(self.target), request.puid)
        self._placed = placed
        self._connections = connect_pipes(request)
        self._started = start(request)
        self._creator = request.parent

    def join(self, timeout: float | None = None) -> int | None:
        """Wait for its end; its exit code, or None after `timeout` seconds."""
        if self._started is not None:
            return self._started.wait(timeout)
        if self._found is None:
            raise ProcessError("a process must be started before it is joined")
        return process_service.join(self.puid, timeout)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it (SIGKILL)."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, sig: int) -> None:
        """Send a signal. A process that has ended does not mind."""
        if self._started is not None:
            self._started.signal(sig)
        elif self._found is not None:
            process_service.kill(self.puid, sig)
        else:
            raise ProcessError("a process must be started before it is sent a signal")

    @property
    def puid(self) -> int:
        """Its id in the run. Raises ProcessError before the start."""
        if self._started is not None:
            return self._started.puid
        if self._found is not None:
            return self._found.p_uid
        raise ProcessError("the process has not been started")

    @property
    def name(self) -> str:
        """Its name, "dragon_process_<puid>" where none was given."""
        if self._started is not None:
            return self._started.name
        return self._found.name if self._found is not None else self._name

    @property
    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""
        return (self._started is not None or self._found is not None) and self.returncode is None

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self._started is not None:
            return self._started.wait(0)
        if self._found is not None:
            return process_service.query(self.puid).ecode
        return None

    @property
    def exitcode(self) -> int | None:
        """The same as returncode."""
        return self.returncode

    @property
    def node(self) -> int:
        """Index of the node it runs on. Raises ProcessError before the start."""
        if self._found is not None:
            return self._found.node
        if self._placed is None:
            raise ProcessError("the process has not been started")
        return self._placed.node.index

    @property
    def h_uid(self) -> int:
        """Host id of the node it runs on. Raises ProcessError before the start, LookupError if the node is lost."""
        return node_at(self.node).h_uid if self._placed is None else self._placed.node.h_uid

    @property
    def stdin_conn(self) -> Connection | None:
        """Where to send what it reads from stdin, if that is a PIPE."""
        return self._connections.get("stdin")

    @property
    def stdout_conn(self) -> Connection | None:
        """Lines that it writes to stdout, if that is a PIPE; EOFError at the end."""
        return self._connections.get("stdout")

    @property
    def stderr_conn(self) -> Connection | None:
        """Lines that it writes to stderr, if that is a PIPE; EOFError at the end."""
        return self._connections.get("stderr")

    def children(self) -> list[Process]:
        """The processes that it started."""
        return [Process(None, ident=k["puid"]) for k in ask("registry.processes") if k["parent"] == self.puid]

    def parent(self) -> Process:
        """The process that started it. Raises ProcessError for the head process."""
        parent = self._found.p_p_uid if self._found is not None else self._creator
        if not parent:
            raise ProcessError("the head process was started by no process of the run")
        return Process(None, ident=parent)


def _exists(name: str) -> bool:
    try:
        return process_service.query(name).ecode is None
    except ProcessError:
        return False


def current() -> Process:
    """The calling process."""
    return Process(None, ident=identity().puid)


class Popen:
    """An executable in the manner of subprocess.Popen; `args` has no argv[0], which is `executable`."""

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
        preexec_fn: Any = None,
        shell: bool = False,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        group: Any = None,
        user: Any = None,
        proc_name: str | None = None,
        umask: int = -1,
        pipesize: int = -1,
        policy: Policy | None = None,
    ) -> None:
        for name, value in (("preexec_fn", preexec_fn), ("group", group), ("user", user)):
            if value is not None:
                raise NotSupportedError(f"Popen({name}=…) is not offered; start a script that does it")
        args = list(args)
        if shell:
            executable, args = "/bin/sh", ["-c", " ".join(args) if executable is None else executable, *args]
        elif executable is None:
            executable, args = args[0], args[1:]
        self._process = Process(executable, args, None, cwd or ".", env, proc_name, None, stdin, stdout, stderr, policy)
        self._process.start()
        self.args = args
        self.returncode: int | None = None

    @property
    def stdin(self) -> Connection | None:
        """Where to send what it reads, if stdin is a PIPE."""
        return self._process.stdin_conn

    @property
    def stdout(self) -> Connection | None:
        """Lines that it writes, if stdout is a PIPE."""
        return self._process.stdout_conn

    @property
    def stderr(self) -> Connection | None:
        """Lines that it writes to stderr, if that is a PIPE."""
        return self._process.stderr_conn

    @property
    def puid(self) -> int:
        """Its id in the run."""
        return self._process.puid

    @property
    def pid(self) -> int:
        """Its process id on its node."""
        assert self._process._started is not None
        return self._process._started.pid

    def wait(self, timeout: float | None = None) -> None:
        """Wait for its end and set `returncode`. Raises TimeoutError after `timeout` seconds."""
        self.returncode = self._process.join(timeout)
        if self.returncode is None:
            raise TimeoutError(f"{self._process.name} still runs after {timeout} s")

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        self.returncode = self._process.returncode
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send a signal."""
        self._process.send_signal(sig)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._process.terminate()

    def kill(self) -> None:
        """End it (SIGKILL)."""
        self._process.kill()
