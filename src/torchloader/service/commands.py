"""Executes commands in the master. A reply is JSON with the key "message", or "error"."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from dragon.commands import worded
from dragon.infrastructure.errors import DestroyedError
from dragon.native.queue import Queue
from torchloader.inputs.job import Job
from torchloader.scheduling.application import ENDED, Application, State, spread
from torchloader.service import messages
from torchloader.service.master import Master
from torchloader.service.placing import free_cores, job_of
from torchloader.service.settings import Settings
from torchloader.training.protocol import Cancel, Pause


class RefusedError(ValueError):
    """Raised for a command that cannot be executed; says why."""


def unlike(job: Job, there: Mapping[str, Job], ended: Collection[str]) -> Job:
    """Return the job under a unique name, with a number appended if its own is taken."""
    candidates = itertools.chain([job.name], map(f"{job.name}-{{}}".format, itertools.count(2)))
    name = next(each for each in candidates if each not in there)
    places = {(each.master, each.port) for other, each in there.items() if other not in ended}
    return replace(job, name=name, port=0 if (job.master, job.port) in places else job.port)


def reply(master: Master, request: messages.Request) -> None:
    try:
        replies = Queue.attach(request.reply_to)
    except DestroyedError:
        return  # the command timed out and reported an error: it must not take effect after that
    try:
        done = _execute(master, request.command)
        result = {"message": done} if isinstance(done, str) else done
    except RefusedError as error:
        result = {"error": str(error)}
    except OSError as error:  # such as that the disk is full: the command had no effect
        result = {"error": worded(error)}
    with contextlib.suppress(DestroyedError):  # the command has timed out
        replies.put(msgspec.json.encode(result))


def _execute(master: Master, command: messages.Command) -> str | dict[str, Any]:
    match command:
        case messages.GetStatus():
            return _status(master)
        case messages.SubmitJob():
            return _submit(master, command.job)
        case messages.StopWhenDone():
            settings = msgspec.structs.replace(master.settings, hold=False)
            settings.save()  # for a master after this one
            master.settings, master.all_submitted = settings, True
            return "it ends when its applications have ended"
    return _change(master, command)


def _change(master: Master, command: messages.OfApplication) -> str:
    record = master.records.get(command.application)
    if record is None:
        there = ", ".join(master.records) or "none"
        raise RefusedError(f"there is no application {command.application!r}; there are: {there}")
    if record.state in ENDED:
        raise RefusedError(f"{command.application} is {record.state} already")
    match command:
        case messages.PauseApplication():
            return _pause(master, record)
        case messages.ResumeApplication():
            return _resume(master, record)
        case messages.CancelApplication():
            return _cancel(master, record)
        case messages.ResizeApplication():
            return _resize(master, record, command.workers)


def _status(master: Master) -> dict[str, Any]:
    nodes = master.nodes
    free = free_cores(nodes, master.records.values())
    return {
        "time": master.now(),
        "policy": master.settings.scheduler,
        "folder": master.settings.folder,
        "nodes": [
            {"node": name, "cores": node.cores, "used": node.cores - free[name], "lent": node.lent}
            | {"devices": len(node.devices)}
            for name, node in nodes.items()
        ],
        "applications": [_described(master, name, record) for name, record in master.records.items()],
    }


def _described(master: Master, name: str, record: Application) -> dict[str, Any]:
    attempt = master.attempts.get(name)
    pace = attempt.pace if attempt is not None else None
    return {
        "name": name,
        "arch": record.spec.arch,
        "state": record.state,
        "since": record.since,
        "reason": master.reasons.get(name, ""),
        "workers": record.workers,
        "away": sum(sum(others.values()) for others in record.away.values()),
        "devices": record.spec.size,
        "nodes": list(record.placement),
        "iteration": max(int(record.progress), pace.iteration if pace else 0),
        "iterations": job_of(record.spec).iterations,  # None where the data decides
        "samples_per_second": pace.samples if pace else 0.0,
        "waiting": pace.waiting if pace else 0.0,
        "loss": pace.loss if pace else None,
    }


def _submit(master: Master, wanted: Job) -> str:
    # Those that have not arrived yet keep their names and ports too.
    expected = Settings.jobs(Path(master.settings.folder))
    there = {each.name: each for each in expected}
    there |= {name: job_of(record.spec) for name, record in master.records.items()}
    ended = {name for name, record in master.records.items() if record.state in ENDED}
    job = unlike(wanted, there, ended)
    error = master.submit_now(job)
    if error:
        raise RefusedError(f"{job.name}: {error}")
    why = "" if job.name == wanted.name else f"; there is another {wanted.name}"
    return f"{job.name} is {master.records[job.name].state}{why}"


def _check(record: Application, change: str, *states: State) -> str:
    """Return the name of an application that is in one of these states."""
    if record.state not in states:
        kind = "paused" if states == (State.PAUSED,) else "running"
        raise RefusedError(f"{record.spec.name} is {record.state}: only a {kind} application can be {change}")
    return record.spec.name


def _pause(master: Master, record: Application) -> str:
    name = _check(record, "paused", State.RUNNING, State.RESIZING)
    master.change(name, State.PAUSING, "paused by a user", held=True)
    master.send_ranks(name, Pause())
    return f"{name} is pausing"


def _resume(master: Master, record: Application) -> str:
    name = _check(record, "resumed", State.PAUSED)
    master.change(name, State.PAUSED, "resumed by a user", held=False)
    master.look_again()
    return f"{name} is {master.records[name].state}"


def _cancel(master: Master, record: Application) -> str:
    name = record.spec.name
    attempt = master.attempts.get(name)
    if attempt is None:
        master.change(name, State.CANCELLED, "cancelled by a user")
        return f"{name} is cancelled"
    attempt.cancelled = True
    if attempt.has_started:
        master.send_ranks(name, Cancel())
    else:
        master.kill(name, "cancelled by a user", cancelled=True)
    return f"{name} leaves after its next iteration"


def _resize(master: Master, record: Application, workers: int) -> str:
    name = _check(record, "resized", State.RUNNING)
    if workers < 1:
        raise RefusedError(f"{name} needs at least one loading worker per device, not {workers}")
    free = free_cores(master.nodes, (each for each in master.records.values() if each is not record))
    if master.settings.anywhere:
        room = {"the run": max(0, sum(free.values())) // record.spec.size}
    else:
        room = {node: free[node] // len(devices) for node, devices in record.placement.items()}
    for where, most in room.items():
        if workers > most:
            limit = f"{where} has cores for at most {most} loading workers per device of {name}"
            raise RefusedError(f"{limit}, not {workers}")
    away = spread(record.needs(record.placement, workers), free)[name] if master.settings.anywhere else {}
    master.resize(name, workers, away, "resized by a user")
    return f"{name} gets {workers} loading workers per device"
