"""The call of a task, as it is submitted and as a worker gets it."""

from __future__ import annotations

import copy
import enum
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dragon.infrastructure.facts import PMIBackend
from dragon.infrastructure.plain_number import plain_number
from dragon.native.process import ProcessTemplate
from dragon.runtime.arguments import PIPE
from dragon.runtime.picklers import Mention
from dragon.runtime.serialization import dumps_call, mentions
from dragon.workflows.batch.conditions import Demand, RetryPolicy
from dragon.workflows.batch.outcome import Input, Key, Promise, contained, replaced


@dataclass(frozen=True)
class Access:
    """Parts of an object that a task reads or writes; without parts, all of it.

    Attributes:
        obj: the object, as a hashable key.
        parts: its parts; empty for all of it.
        writes: whether they are written.

    Examples:
        >>> from dragon.workflows.batch import Batch
        >>> with Batch(workers_per_node=1) as batch:
        ...     batch.write("/data", "a.csv").writes, batch.read("/data/a.csv").parts
        (True, ('/data/a.csv',))
    """

    obj: Hashable
    parts: tuple[Hashable, ...]
    writes: bool


def access(obj: object, channels: tuple[Any, ...], writes: bool) -> Access:
    """Return an access to files (a folder and names in it, or one file), to keys of a DDict, or to parts of any
    hashable object.

    Raises TypeError for an object or a part that is not hashable.
    """
    if isinstance(obj, (str, os.PathLike)):
        # Files are identified by their absolute paths, so that a file has the same identity however it is named.
        base = os.path.abspath(os.fspath(obj))
        files = [os.path.normpath(os.path.join(base, os.fspath(part))) for part in channels] or [base]
        return Access("files", tuple(files), writes)
    from dragon.data.ddict import DDict  # imported here, since most batches do not need it

    name: Hashable = ("ddict", obj.get_name()) if isinstance(obj, DDict) else obj
    found = Access(name, tuple(channels), writes)
    hash(found)
    return found


NEVER = 1e9
"""Seconds from which a timeout means none."""


class Kind(enum.IntEnum):
    """What a task runs."""

    FUNCTION = 0
    PROCESS = 1
    JOB = 2


Streams = tuple[int | str | None, int | str | None]
"""Where stdout and stderr go: None to leave them, DEVNULL, STDOUT, or a file, in whose name `{rank}` is replaced."""


class Output(NamedTuple):
    """Where a task's output goes, and the paths of the files that it goes to, by rank, per stream."""

    streams: Streams
    stdout: list[str]
    stderr: list[str]


class Call(NamedTuple):
    """A task to be submitted: the pickled call, and its dependencies.

    Attributes:
        inputs: the tasks whose results it takes.
        retry: when it is tried again; None for never.
        digest: what it is called in a journal; empty for a task that is not kept there.
        handles: the handles among the arguments, which each further try attaches once more.
        demand: what it asks for; None for nothing.
    """

    kind: Kind
    data: bytes
    buffers: list[Any]
    inputs: list[Key | Promise]
    accesses: list[Access]
    name: str
    timeout: float
    streams: Streams
    weight: int
    retry: RetryPolicy | None = None
    digest: bytes = b""
    handles: tuple[Mention, ...] = ()
    demand: Demand | None = None


Work = tuple[Callable[..., Any] | None, tuple[Any, ...], dict[str, Any]]


def function_work(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Work:
    """Return the call of a function task. Raises TypeError if `target` is not callable."""
    if not callable(target):
        raise TypeError(f"the target of a function task must be callable, not {target!r}")
    return target, args, kwargs


def process_work(template: ProcessTemplate) -> Work:
    """Return the call of a process task. Raises TypeError for no template, ValueError for one that reads a PIPE."""
    return None, (_checked(template),), {}


def job_work(templates: Iterable[tuple[int, ProcessTemplate]], pmi: PMIBackend | str | None) -> tuple[Work, int]:
    """Return the call of a job and its number of ranks.

    Raises TypeError and ValueError for what is not a non-empty list of (number, template), and for a template that
    reads from a PIPE.
    """
    pairs = []
    for one in templates:
        if not isinstance(one, Sequence) or len(one) != 2:
            raise TypeError(f"a job is described by pairs of (number of processes, template), not {one!r}")
        pairs.append((plain_number(one[0]), _checked(one[1])))
    if not pairs:
        raise ValueError("a job needs at least one (number of processes, template)")
    for nproc, _ in pairs:
        if not isinstance(nproc, int) or nproc < 1:
            raise ValueError(f"the number of processes must be a positive whole number, not {nproc!r}")
    return (None, (pairs, pmi), {}), sum(nproc for nproc, _ in pairs)


def _checked(template: ProcessTemplate) -> ProcessTemplate:
    if not isinstance(template, ProcessTemplate):
        raise TypeError(f"a process is described by a ProcessTemplate, not {template!r}")
    if template.stdin == PIPE:
        raise ValueError("a task's process cannot read from a PIPE, into which nobody could write")
    return template


def describe(
    kind: Kind, work: Work, task_class: type, promise_of: Callable[[Any], Promise]
) -> tuple[Work, list[Promise]]:
    """Return the call with stand-ins for the tasks whose results it takes, and those tasks."""
    target, args, kwargs = work
    inputs: list[Promise] = []
    given = args if kind == Kind.FUNCTION else _searched(kind, args)
    if next(contained((given, kwargs), task_class), None) is not None:

        def stand_in(task: object) -> Input:
            inputs.append(promise_of(task))
            return Input(len(inputs) - 1)

        args, kwargs = substituted(kind, args, kwargs, task_class, stand_in)
    return (target, args, kwargs), inputs


def packed(work: Work, again: bool) -> tuple[bytes, list[Any], tuple[Mention, ...]]:
    """Return the call as bytes and buffers, and, if it may be made `again`, the handles among its arguments. Raises
    what pickling raises."""
    buffers: list[Any] = []
    if not again:
        return dumps_call(*work, buffers.append), buffers, ()
    with mentions() as handles:
        data = dumps_call(*work, buffers.append)
    for _, send in handles:
        send()
    return data, buffers, tuple(handles)


def _searched(kind: Kind, args: tuple[Any, ...]) -> object:
    templates = [args[0]] if kind == Kind.PROCESS else [template for _, template in args[0]]
    return tuple(part for template in templates for part in (template.args, template.kwargs))


def substituted(
    kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], what: type, replace: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call, including those of its processes, with all objects of type `what` replaced."""
    if kind == Kind.FUNCTION:
        return replaced(args, what, replace), replaced(kwargs, what, replace)

    def in_template(template: ProcessTemplate) -> ProcessTemplate:
        changed = copy.copy(template)
        changed.args = replaced(template.args, what, replace)
        changed.kwargs = replaced(template.kwargs, what, replace)
        return changed

    if kind == Kind.PROCESS:
        return (in_template(args[0]),), kwargs
    return ([(nproc, in_template(template)) for nproc, template in args[0]], *args[1:]), kwargs
