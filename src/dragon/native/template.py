"""The description of a process, and the spawn request that is made from it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from dragon.infrastructure.errors import NotSupportedError
from dragon.infrastructure.policy import Policy
from dragon.infrastructure.start_request import UNNAMED, Output, StartRequest
from dragon.infrastructure.system import all_sendable
from dragon.runtime import placement
from dragon.runtime.arguments import (
    DEVNULL,
    PIPE,
    STDOUT,
    StreamArgument,
    checked_arguments,
    checked_environment,
    checked_stream,
    output_of,
    words_of,
)
from dragon.runtime.placement import Placed
from dragon.runtime.run import this_run
from dragon.runtime.serialization import dumps_call
from dragon.runtime.spawning import current_folder, environment_changes, new_request, prepare_call


class ProcessTemplate:
    """The description of a process, from which any number of processes can be started.

    Args:
        target: a callable, or the name of an executable (as given, in PATH, or in `cwd`).
        args, kwargs: its arguments; of any size.
        cwd: its working directory; "." is the creator's.
        env: variables to set on top of the creator's environment.
        stdin, stdout, stderr: None (the creator's), PIPE, DEVNULL, a file to append to, for stderr STDOUT.
        policy: its placement.
        options: accepted for dragonhpc's programs; has no effect.
        leave_running: whether the processes that it started may continue after its end, until the run's. If not, they
            are ended with it: its child processes, in whatever groups and sessions they are, and those that it started
            by the runtime. They are killed if it was killed; else they get SIGTERM, and SIGKILL five seconds later.

    Attributes:
        PIPE: for a stream: a connection to the process that starts this one.
        STDOUT: for `stderr`: to the same place as `stdout`.
        DEVNULL: for a stream: nothing is read, and what is written is dropped.
        is_python: whether the target is a callable.
        target: the callable, or the path of the executable.
        args: the positional arguments.
        kwargs: the keyword arguments.
        cwd: the absolute path of the working directory.
        env: the variables that are set on top of the creator's environment.
        stdin, stdout, stderr: the streams, as they were passed.
        policy: the placement, or None.
        options: as it was passed.
        leave_running: as it was passed.

    Raises TypeError and ValueError for invalid arguments, AttributeError for an executable that does not exist,
    PermissionError for a file that may not be run, FileNotFoundError for a `cwd` that does not exist, and what pickle
    raises for a callable or arguments that cannot be sent.

    Examples:
        >>> from dragon.native.process import ProcessTemplate
        >>> from dragon.native.process_group import ProcessGroup
        >>> template = ProcessTemplate("sh", ["-c", "exit $CODE"], env={"CODE": "0"})
        >>> group = ProcessGroup()
        >>> group.add_process(nproc=2, template=template)
    """

    PIPE: ClassVar[int] = PIPE
    STDOUT: ClassVar[int] = STDOUT
    DEVNULL: ClassVar[int] = DEVNULL

    _umask = -1  # -1: the creator's

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
        options: object = None,
        *,
        leave_running: bool = False,
    ) -> None:
        self.is_python = callable(target)
        if not self.is_python and not isinstance(target, (str, os.PathLike)):
            raise TypeError(f"target must be callable or the name of an executable, not {target!r}")
        if policy is not None and not isinstance(policy, Policy):
            raise TypeError(f"policy must be a Policy, not {policy!r}")
        self.args = () if args is None else checked_arguments(args)
        if not isinstance(kwargs, Mapping | None):
            raise TypeError(f"kwargs must map the names of arguments to their values, not {kwargs!r}")
        self.kwargs = dict(kwargs or {})
        cwd = os.fsdecode(cwd)
        self.cwd = os.path.abspath(cwd if os.path.isabs(cwd) else os.path.join(current_folder(local=False), cwd))
        if not os.path.isdir(self.cwd):
            raise FileNotFoundError(2, "the working directory of a process does not exist", self.cwd)
        self.env = {} if env is None else checked_environment(env)
        self.stdin = stdin if stdin is None else checked_stream("stdin", stdin)
        self.stdout = stdout if stdout is None else checked_stream("stdout", stdout)
        self.stderr = stderr if stderr is None else checked_stream("stderr", stderr)
        self.policy = policy
        self.options = options
        self.leave_running = leave_running
        self.target: Callable[..., Any] | str
        if self.is_python:
            self.target = target
        else:
            self.target = placement.search_executable(str(target), self.cwd)
            if not os.access(self.target, os.X_OK) and not self.target.endswith(".py"):
                raise PermissionError(13, "this file may not be executed (chmod +x)", self.target)
            if self.kwargs:
                raise ValueError(f"an executable takes no keyword arguments, and {target} was given {self.kwargs}")
            words_of(self.args)

    @property
    def argdata(self) -> bytes | None:
        """The serialized call; None for an executable."""
        return dumps_call(self._callable(), self.args, self.kwargs) if self.is_python else None

    def _callable(self) -> Callable[..., Any]:
        assert callable(self.target)
        return self.target

    def get_original_python_parameters(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Return (target, args, kwargs) of a Python process. Raises ValueError for an executable."""
        if not self.is_python:
            raise ValueError(f"{self.target} is an executable, not a Python function")
        return self._callable(), self.args, self.kwargs

    def get_sdict(self) -> dict[str, Any]:
        """Return the description as a dict, which from_sdict() reads."""
        names = (
            *("target", "args", "kwargs", "cwd", "env", "stdin", "stdout", "stderr", "policy", "options"),
            *("leave_running",),
        )
        values = {name: getattr(self, name) for name in names}
        values["policy"] = self.policy.get_sdict() if self.policy else None
        return values

    sdesc = property(get_sdict)
    """The same as get_sdict()."""

    @classmethod
    def from_sdict(cls, sdict: dict[str, Any]) -> ProcessTemplate:
        """Return the template that get_sdict() described."""
        values = dict(sdict)
        if values["policy"] is not None:
            values["policy"] = Policy.from_sdict(values["policy"])
        return ProcessTemplate(**values)

    def start(self) -> None:
        """Raise NotSupportedError: Process.from_template(template).start() starts a process."""
        raise NotSupportedError("a template cannot be started; use Process.from_template(template)")

    def request(self, name: str, placed: Placed | None = None, kind: str = UNNAMED) -> StartRequest:
        """Return a spawn request for one process of this description. Without `placed`, the caller sets the place in
        the request later. Without a name the process is named by its kind and its puid."""
        request = new_request(name, self._umask, kind=kind, folder=self.cwd, leave_running=self.leave_running)
        for stream in (self.stdin, self.stdout, self.stderr):
            request.streams.append(Output() if stream is None else output_of(stream))
        request.environment = environment_changes(this_run(), self.env)
        if placed is not None:
            request.node = placed.node.index
            if placed.cpus:
                request.cpus = placed.mask
            if placed.environment:
                request.environment.update(self.environment_of(placed))
        if self.is_python:
            target = cast("Callable[..., Any]", self.target)
            prepare_call(request, "dragon.runtime.child:run", lambda: dumps_call(target, self.args, self.kwargs))
        else:
            executable, arguments = self._command()
            request.executable, *request.arguments = all_sendable([executable, *arguments])
        return request

    def environment_of(self, placed: Placed) -> dict[str, str]:
        """Return the variables that the place adds to the environment; those that the user set are kept."""
        return {key: value for key, value in placed.environment.items() if key not in self.env}

    def _command(self) -> tuple[str, list[str]]:
        target = str(self.target)
        arguments = words_of(self.args)
        if os.access(target, os.X_OK):
            return target, arguments
        return sys.executable, [target, *arguments]
