"""The loop of a batch's worker: it takes a task, claims it, runs it and reports the outcome.

A task is claimed by a word in shared memory that the scheduler can change too: whichever process changes it first has
claimed the task, or has cancelled it. So a task that was cancelled before it was claimed never runs, and a worker is
only killed for the task that was cancelled.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import psutil

from dragon.infrastructure.facts import PMIBackend
from dragon.infrastructure.node_desc import NodeDescriptor
from dragon.infrastructure.policy import Policy
from dragon.native.process import Process, ProcessTemplate
from dragon.native.process_group import DragonUserCodeError, ProcessGroup
from dragon.native.workers import FINISHED, begin_task, end_task, pass_on_end, put_result, quiet
from dragon.runtime.arguments import DEVNULL, PIPE, STDOUT
from dragon.runtime.handle import Channel, Words
from dragon.runtime.nodes import own_node
from dragon.runtime.serialization import loads
from dragon.workflows.batch.call import Kind, Streams, substituted
from dragon.workflows.batch.conditions import Share, variables_set
from dragon.workflows.batch.leftovers import Leftovers
from dragon.workflows.batch.memory import limited
from dragon.workflows.batch.outcome import Failure, Input, Sent, pack, unpack

# The types of a worker's messages.
RUNS, ENDED, REFUSES = 0, 1, 5
MOVES = 3  # in place of a task's kind: from now on each node has a queue of its own
PROCESS, GROUP = 0, 1
"""Whether a task's identifier is the puid of a process, or the number of a group."""

_STATES = 20  # bits of a claim that say what happened to the task; those above are its number
_CANCELLED, _FINISHED, _FIRST_WORKER = 1, 2, 3

# number, slot, kind, whether to report the start, the call, its buffers, results of other tasks, streams, its shares of
# nodes, whether it asked for CPUs
TaskMessage = tuple[int, int, int, bool, bytes, list[Any], list[Sent], Streams, list[Share] | None, bool]


def queued(number: int) -> int:
    """Return the claim of a task that no worker has claimed."""
    return number << _STATES


def cancelled(number: int) -> int:
    """Return the claim of a task that is cancelled: it never runs, or its worker will end."""
    return number << _STATES | _CANCELLED


def finished(number: int) -> int:
    """Return the claim of a function that has returned, whose worker is about to report that."""
    return number << _STATES | _FINISHED


def claimed(number: int, worker: int) -> int:
    """Return the claim of a task that this worker has claimed."""
    return number << _STATES | _FIRST_WORKER + worker


def worker_of(claim: int, number: int) -> int | None:
    """Return the worker that has claimed the task of that number; None if none has."""
    worker = claim - claimed(number, 0)
    return worker if 0 <= worker < 1 << _STATES else None


class Plan(NamedTuple):
    """The placement of the workers, an initializer (a function and its arguments) to call first, and the nodes of jobs
    (empty: all)."""

    policies: list[Policy | None]
    initializer: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
    hosts: tuple[str, ...] = ()


class Setting(NamedTuple):
    """What all workers of a batch share."""

    tasks: Channel
    events: Channel
    claims: Words
    doing: Words
    plan: Plan


@quiet
def work(index: int, setting: Setting) -> None:
    """Run tasks until None arrives, which is left for the other workers."""
    tasks, events, claims, doing, plan = setting
    if plan.initializer is not None:
        function, arguments = plan.initializer
        try:
            function(*arguments)
        except Exception as error:
            events.put((REFUSES, Failure.of(error, with_traceback=True)))
            doing[index] = FINISHED
            return
    leftovers = Leftovers()
    while True:
        message = tasks._get_task(doing, index)
        if message is None:
            pass_on_end(tasks)
            doing[index] = FINISHED
            return
        number, slot, kind = message[:3]
        if kind == MOVES:
            tasks = message[3][message[4][index]]
            continue
        mine = claimed(number, index)
        if claims.swap_if(slot, queued(number), mine):
            began = time.monotonic()
            end = partial(_end_function, setting, index, number, slot, began)
            ended = _run(Kind(kind), message, setting, leftovers, end)
            seconds = time.monotonic() - began
            if kind == Kind.FUNCTION and not claims.swap_if(slot, mine, finished(number)):
                return  # it was cancelled meanwhile, and this process is about to be killed
            _tell(events, number, index, seconds, ended)
            if kind == Kind.FUNCTION and message[8] and message[8][0].gpus:
                doing[index] = 0
                return  # a process keeps to the GPUs that it has used first: another worker takes this one's place
        del message  # releases the memory of its buffers


def _end_function(setting: Setting, index: int, number: int, slot: int, began: float, error: MemoryError) -> None:
    """End a function that takes too much memory, and with it this worker, as nothing else ends it."""
    if setting.claims.swap_if(slot, claimed(number, index), finished(number)):
        _tell(setting.events, number, index, time.monotonic() - began, (False, Failure.of(error)))
        for child in psutil.Process().children(recursive=True):
            child.kill()
        setting.doing[index] = 0  # another worker takes this one's place
        os._exit(0)


def _tell(events: Channel, number: int, index: int, seconds: float, ended: tuple[bool, Any]) -> None:
    try:
        put_result(events, (ENDED, number, index, seconds, *ended))
    except MemoryError as error:
        put_result(events, (ENDED, number, index, seconds, False, Failure.of(error)))


def _run(
    kind: Kind, message: TaskMessage, setting: Setting, leftovers: Leftovers, end: Callable[[MemoryError], None]
) -> tuple[bool, Any]:
    """Return (True, the packed result) or (False, a Failure). `end` ends a function that takes too much memory."""
    number, _, _, tells, data, buffers, inputs, streams, shares, asked = message
    try:
        target, args, kwargs = loads(data, buffers)
        if inputs:
            values = [unpack(sent) for sent in inputs]
            args, kwargs = substituted(kind, args, kwargs, Input, lambda one: values[one.index])
        if kind == Kind.FUNCTION:
            if tells:
                setting.events.put((RUNS, number, None))
            if not shares:
                return True, _call(target, args, kwargs, streams, leftovers)
            with _bound(shares[0], asked), limited(os.getpid(), shares[0].memory, end):
                return True, _call(target, args, kwargs, streams, leftovers)
        if kind == Kind.PROCESS:
            return True, (None, [], _run_process(number, args[0], streams, setting, shares, asked))
        return True, (None, [], _run_job(number, args[0], args[1], streams, setting, shares, asked))
    except Exception as error:
        return False, Failure.of(error, with_traceback=True)
    except SystemExit as error:
        return False, Failure.of(RuntimeError(f"the task called sys.exit({error.code!r})"))


def _call(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], streams: Streams, leftovers: Leftovers
) -> Sent:
    """Return the packed result of a function."""
    begun, failed = begin_task(target, args), True
    try:
        with leftovers.of(target):
            if streams == (None, None):
                sent = pack(target(*args, **kwargs))
            else:
                with _redirected(streams):
                    sent = pack(target(*args, **kwargs))
        failed = False
        return sent
    finally:
        end_task(begun, failed)


@contextmanager
def _redirected(streams: Streams) -> Iterator[None]:
    """Within the block, redirect this process's output."""
    saved = [os.dup(1), os.dup(2)]
    sys.stdout.flush()
    try:
        for number, stream in zip((1, 2), streams, strict=True):
            if stream is not None:
                _redirect(number, stream)
        yield
    finally:
        for file in (sys.stdout, sys.stderr):
            with suppress(ValueError):  # the task has closed it
                file.flush()
        for number, fd in zip((1, 2), saved, strict=True):
            os.dup2(fd, number)
            os.close(fd)


def _redirect(number: int, stream: int | str) -> None:
    if stream == STDOUT:
        os.dup2(1, number)
        return
    path = os.devnull if stream == DEVNULL else str(stream).replace("{rank}", "0")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(fd, number)
    os.close(fd)


@contextmanager
def _bound(share: Share, asked: bool) -> Iterator[None]:
    """Within the block, bind this process to its CPUs, and select its GPUs for libraries that have used none yet."""
    node, mine = own_node(), os.sched_getaffinity(0)
    cpus = [cpu for cpu in share.cpus if cpu >= 0]
    with variables_set(_variables(node, share, asked)):
        if cpus:
            os.sched_setaffinity(0, node.existing_cpus(cpus))
        try:
            yield
        finally:
            os.sched_setaffinity(0, mine)


def _variables(node: NodeDescriptor, share: Share, asked: bool) -> dict[str, str]:
    variables = {"OMP_NUM_THREADS": str(len(share.cpus))} if asked and share.cpus else {}
    if share.gpus and node.gpu_env_str:
        variables[node.gpu_env_str] = ",".join(map(node.gpu_name, share.gpus))
    return variables


def _with_share(template: ProcessTemplate, share: Share, asked: bool) -> ProcessTemplate:
    """Return the template of a process that runs where its share is, on the CPUs and GPUs of that, unless its policy
    says otherwise."""
    where = Policy(
        placement=Policy.Placement.HOST_NAME,
        host_name=share.host,
        cpu_affinity=[cpu for cpu in share.cpus if cpu >= 0],
        gpu_affinity=[*share.gpus],
    )
    template.policy = Policy.merge(where, template.policy)
    if asked and share.cpus:
        template.env = {"OMP_NUM_THREADS": str(len(share.cpus)), **(template.env or {})}
    return template


def _run_process(
    number: int, template: ProcessTemplate, streams: Streams, setting: Setting, shares: list[Share] | None, asked: bool
) -> int:
    template = _written(template, streams, 0)
    if shares:
        template = _with_share(template, shares[0], asked)
    if template.policy is None or template.policy.placement == Policy.Placement.DEFAULT:
        # The worker's slot stands for a CPU of this node.
        template.policy = Policy.merge(Policy(placement=Policy.Placement.LOCAL), template.policy)
    process = Process.from_template(template)
    pid = process._begin().pid
    setting.events.put((RUNS, number, (PROCESS, process.puid)))
    errors: list[MemoryError] = []

    def end(error: MemoryError) -> None:
        errors.append(error)
        process.kill()

    most = shares[0].memory if shares and process.node == own_node().index else 0
    with limited(pid, most, end):
        code = process.join()
    if errors:
        raise errors[0]
    assert code is not None
    return code


def _run_job(
    number: int,
    templates: list[tuple[int, ProcessTemplate]],
    pmi: PMIBackend | str | None,
    streams: Streams,
    setting: Setting,
    shares: list[Share] | None,
    asked: bool,
) -> int | list[int]:
    """Return the exit codes of the ranks; for a job of one rank its exit code."""
    ranks = [template for nproc, template in templates for _ in range(nproc)]
    group = ProcessGroup(pmi=pmi)
    for rank, template in enumerate(ranks):
        written = _written(template, streams, rank)
        placed = _with_share(written, shares[rank], asked) if shares else _on_hosts(written, setting.plan.hosts, rank)
        group.add_process(1, placed)
    group.init()
    try:
        group.start()
        puids = group.puids
        setting.events.put((RUNS, number, (GROUP, group._number)))
        with suppress(DragonUserCodeError):  # its exit code is the result, and its output has been written
            group.join()
        codes = dict(group.exit_status)
        ended = [codes[puid] for puid in puids]
        return ended if len(ended) > 1 else ended[0]
    finally:
        group.close()


def _written(template: ProcessTemplate, streams: Streams, rank: int) -> ProcessTemplate:
    """Return the template with the task's output where it has none of its own."""
    values = {**template.get_sdict(), "policy": template.policy}
    for name, stream in zip(("stdout", "stderr"), streams, strict=True):
        if values[name] in (None, PIPE):
            values[name] = stream.replace("{rank}", str(rank)) if isinstance(stream, str) else stream
    return ProcessTemplate(**values)


def _on_hosts(template: ProcessTemplate, hosts: tuple[str, ...], rank: int) -> ProcessTemplate:
    policy = template.policy
    if hosts and (policy is None or policy.placement in (Policy.Placement.DEFAULT, Policy.Placement.ANYWHERE)):
        here = Policy(placement=Policy.Placement.HOST_NAME, host_name=hosts[rank % len(hosts)])
        template.policy = Policy.merge(policy, here)
    return template
