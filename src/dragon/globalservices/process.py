"""Processes of the run by name or puid."""

from __future__ import annotations

import base64
import pickle
import signal
import time
from collections.abc import Iterable, Sequence
from typing import Any

from dragon.infrastructure.connection import Connection
from dragon.infrastructure.errors import NotSupportedError, ProcessError
from dragon.infrastructure.facts import PMIBackend
from dragon.infrastructure.parameters import this_process
from dragon.infrastructure.policy import Policy, PolicyError
from dragon.infrastructure.process_desc import ProcessDescriptor
from dragon.infrastructure.structs import msgspec
from dragon.infrastructure.variables import ARGUMENT_DATA
from dragon.native.queue import Queue
from dragon.native.template import ProcessTemplate
from dragon.runtime import placement
from dragon.runtime.agent_client import ask
from dragon.runtime.arguments import (
    DEVNULL,
    PIPE,
    STDOUT,
    StreamArgument,
    checked_arguments,
    checked_environment,
    checked_stream,
    words_of,
)
from dragon.runtime.connection import connect_pipes
from dragon.runtime.processes import join, kill, look_up
from dragon.runtime.protocol.run import Known, ListProcesses
from dragon.runtime.spawning import start

__all__ = [
    "DEVNULL",
    "PIPE",
    "STDOUT",
    "ProcessCreate",
    "ProcessError",
    "create",
    "create_with_argdata",
    "get_create_message",
    "get_create_message_with_argdata",
    "get_list",
    "get_multi_join_failure_puids",
    "get_multi_join_success_puids",
    "join",
    "kill",
    "multi_join",
    "query",
    "runtime_reboot",
    "signal",
    "start_capturing_child_mp_output",
    "start_process",
    "stop_capturing_child_mp_output",
    "this_process",
]


class ProcessCreate(msgspec.Struct, frozen=True):
    """The description of an executable to start and its placement. get_create_message() makes it."""

    exe: str
    run_dir: str  # empty for the creator's
    args: list[str]
    env: dict[str, str]  # on top of the creator's environment
    user_name: str  # empty for a default one
    streams: tuple[StreamArgument, StreamArgument, StreamArgument]
    policy: Policy | None
    argdata: bytes | None  # for a Python program
    umask: int  # -1 for the creator's
    pmi: PMIBackend | None = None  # None if it is not a rank of an MPI job

    def serialize(self) -> str:
        """Return the message as text, which the functions of groups take as well."""
        return base64.b64encode(pickle.dumps(self)).decode()

    def template(self) -> ProcessTemplate:
        """Return the template of such processes. Raises AttributeError if there is no such executable."""
        given = self.args, None, self.run_dir or ".", self.env, *self.streams
        template = ProcessTemplate(self.exe, *given, policy=self.policy)
        template._umask = self.umask
        return template


def start_process(message: ProcessCreate, placed: placement.Placed) -> tuple[int, dict[int, Connection]]:
    """Start the process there. Returns its puid, and our ends of those of its streams that are a PIPE.

    Raises AttributeError if there is no such executable, OSError if it cannot be started.
    """
    template = message.template()
    request = template.request(message.user_name, placed)
    if message.argdata is not None:
        # The process is attached to the queue before it runs, so this handle of it may be dropped.
        queue = Queue()
        queue.put(message.argdata)
        request.attached.append(queue._name())
        request.environment[ARGUMENT_DATA] = ",".join(map(str, queue._name()))
    connections = connect_pipes(request.streams)
    start(request)
    placement.note(placed, request.name, template.target, request.puid)
    return request.puid, connections


SUCCESS, TIMEOUT, PENDING = 0, 2, 4


def create(
    exe: str,
    run_dir: str,
    args: Sequence[str],
    env: dict[str, str] | None,
    user_name: str = "",
    options: object = None,
    soft: bool = False,
    *placed: object,
    **named: object,
) -> ProcessDescriptor:
    """Start an executable and return its descriptor; dragon.native.process.Process does more.

    With `soft` a live process of the same name is returned instead. The other parameters are those of
    get_create_message(). Streams that are a PIPE are connections of the descriptor. `options` and `pipesize` have no
    effect, nor has `pmi`: an MPI program not started as a rank is a job of one rank; jobs of several ranks are groups.
    Raises ProcessError if it cannot be started, ValueError for an invalid stream or `pmi`, NotSupportedError for
    another `group` or `user`.
    """
    return _create(get_create_message(exe, run_dir, args, env, user_name, options, *placed, **named), soft)


def create_with_argdata(
    exe: str,
    run_dir: str,
    args: Sequence[str],
    env: dict[str, str] | None,
    argdata: bytes | None = None,
    user_name: str = "",
    options: object = None,
    soft: bool = False,
    pmi: PMIBackend | str | None = None,
    stdin: StreamArgument = None,
    stdout: StreamArgument = None,
    stderr: StreamArgument = None,
    policy: Policy | None = None,
) -> ProcessDescriptor:
    """Start a Python program, which finds `argdata`, of any size, in dragon.globalservices.api_setup._ARG_PAYLOAD.

    Raises the exceptions of create(), and TypeError if `argdata` is not bytes.
    """
    what = exe, run_dir, args, env, argdata, user_name, options, stdin, stdout, stderr
    return _create(get_create_message_with_argdata(*what, pmi=pmi, policy=policy), soft)


def get_create_message(
    exe: str, run_dir: str, args: Sequence[str], env: dict[str, str] | None, *others: Any, **named: Any
) -> ProcessCreate:
    """Return the message for what create() would start, for dragon.globalservices.group.

    The other parameters are those of get_create_message_with_argdata(), without `argdata`. Raises ValueError,
    NotSupportedError.
    """
    return get_create_message_with_argdata(exe, run_dir, args, env, None, *others, **named)


def get_create_message_with_argdata(
    exe: str,
    run_dir: str,
    args: Sequence[str],
    env: dict[str, str] | None,
    argdata: bytes | None = None,
    user_name: str = "",
    options: object = None,
    stdin: StreamArgument = None,
    stdout: StreamArgument = None,
    stderr: StreamArgument = None,
    group: object = None,
    user: object = None,
    umask: int = -1,
    pipesize: int = -1,
    pmi: PMIBackend | str | None = None,
    policy: Policy | None = None,
) -> ProcessCreate:
    """Return the message for what create_with_argdata() would start. Raises ValueError, NotSupportedError,
    TypeError."""
    for name, value in (("group", group), ("user", user)):
        if value is not None:
            raise NotSupportedError(f"create({name}=...) is not offered; start a script that does it")
    if argdata is not None and not isinstance(argdata, bytes):
        raise TypeError(f"argdata must be bytes, not {type(argdata).__name__}")
    streams = checked_stream("stdin", stdin), checked_stream("stdout", stdout), checked_stream("stderr", stderr)
    words, variables = words_of(checked_arguments(args)), checked_environment(env)
    backend = PMIBackend.from_str(pmi)
    return ProcessCreate(exe, run_dir, words, variables, user_name, streams, policy, argdata, umask, backend)


def runtime_reboot(
    *, puids: list[int] | None = None, huids: list[int] | None = None, hostnames: list[str] | None = None
) -> None:
    """Raise NotSupportedError: a run cannot restart without some of its live nodes."""
    raise NotSupportedError("a run does not reboot its nodes; `dragon --resilient` continues without a lost one")


def start_capturing_child_mp_output() -> None:
    """Do nothing: the output of child processes is always shown, in a notebook below the cell."""


stop_capturing_child_mp_output = start_capturing_child_mp_output
"""The same."""


def _create(message: ProcessCreate, soft: bool) -> ProcessDescriptor:
    name = message.user_name
    if soft and not name:
        raise ProcessError("soft=True needs the user_name of a process")
    known = [process for process in _living() if process.name == name] if name else []
    if known and soft:
        return query(known[0].puid)
    if known:
        raise ProcessError(f"A process {name!r} already exists in this run")
    try:
        puid, connections = start_process(message, placement.place(message.policy))
    except (AttributeError, OSError, PolicyError) as error:
        raise ProcessError(f"process create failed: {error}") from error
    ends = {f"{name}_conn": connections.get(number) for number, name in enumerate(("stdin", "stdout", "stderr"))}
    return msgspec.structs.replace(look_up(puid), policy=message.policy, **ends)


def _living() -> list[Known]:
    return [known for known in ask(ListProcesses()) if known.code is None]


def get_list() -> list[int]:
    """Return the puids of all processes that were started in the run, also of those that have ended."""
    return [known.puid for known in ask(ListProcesses())]


def query(identifier: int | str) -> ProcessDescriptor:
    """Return the process of that puid or name, also if it has ended. Raises ProcessError if there is none."""
    found = look_up(identifier)
    children = {process.puid for process in _living() if process.parent == found.p_uid}
    return msgspec.structs.replace(found, live_children=children)


def multi_join(
    identifiers: Iterable[int | str],
    timeout: float | None = None,
    join_all: bool = False,
    return_on_bad_exit: bool = False,
) -> tuple[list[tuple[int, int]] | None, dict[str, list[int | None]]]:
    """Wait for one of several processes, or for all of them.

    Returns:
        ((puid, exit code) of those that ended, or None after `timeout` seconds;
        a status per puid: [0, exit code] has ended, [4, None] runs, [2, None] timed out).

    Raises ProcessError for an empty list. With `return_on_bad_exit` the first exit code other than 0 ends the wait.
    """
    waiting = [look_up(i).p_uid for i in identifiers]
    if not waiting:
        raise ProcessError("there is no process to wait for")
    end = None if timeout is None else time.monotonic() + timeout
    ended: dict[int, int] = {}
    pause = 0.0005
    while True:
        for puid in waiting:
            if puid not in ended and (code := join(puid, 0)) is not None:
                ended[puid] = code
        bad = return_on_bad_exit and any(ended.values())
        done = len(ended) == len(waiting) or (ended and not join_all) or bad
        if done or (end is not None and time.monotonic() >= end):
            break
        # Wait for the first of those that are left, with a timeout, and check the others in between.
        left = next(puid for puid in waiting if puid not in ended)
        join(left, pause if end is None else min(pause, max(0.0, end - time.monotonic())))
        pause = min(pause * 2, 0.05)
    unfinished = PENDING if done else TIMEOUT
    statuses = {str(puid): [SUCCESS if puid in ended else unfinished, ended.get(puid)] for puid in waiting}
    return list(ended.items()) if done else None, statuses


def get_multi_join_success_puids(statuses: dict[str, list[int | None]]) -> list[int]:
    """Return the puids in the statuses of multi_join() that ended with exit code 0."""
    return [int(puid) for puid, (status, code) in statuses.items() if status == SUCCESS and code == 0]


def get_multi_join_failure_puids(statuses: dict[str, list[int | None]]) -> list[int]:
    """Return the puids in the statuses of multi_join() that ended with another exit code."""
    return [int(puid) for puid, (status, code) in statuses.items() if status == SUCCESS and code != 0]
