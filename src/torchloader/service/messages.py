"""The messages between the processes of a torchloader cluster, over queues of the run."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from queue import Empty
from typing import Any

import msgspec

from dragon.infrastructure.errors import DestroyedError, DragonError, RunEndedError
from dragon.native.queue import Queue
from torchloader.inputs.job import Job
from torchloader.training.protocol import Leaves, Order, Report


class _Message(msgspec.Struct, frozen=True):
    pass


# ---- to an application master


class Introduce(_Message, frozen=True):
    """Asks an application master to send Joined."""


class Launch(_Message, frozen=True):
    """Starts the ranks of an application that belong on this node."""

    application: str
    attempt: int  # the number of the start, so that reports of an earlier one can be recognized
    command: tuple[str, ...]  # the program and its arguments; with `ours` the arguments of torchloader.training.train
    ours: bool  # whether torchloader's own training program is run
    devices: Mapping[int, int | None]  # by rank, of the ranks of this node: its GPU; None for the CPU
    world_size: int  # the number of ranks on all nodes
    master: str  # the address at which they meet
    port: int
    workers: int  # loading workers of each rank
    folder: str  # for traces, checkpoints and the output of the ranks
    environment: Mapping[str, str] = {}  # of the job
    away: tuple[str, ...] | None = None  # the nodes of those workers that run on another one; None if they may not


class RankOrder(_Message, frozen=True):
    """Sends an order to all ranks of an application on this node."""

    application: str
    order: Order


class Kill(_Message, frozen=True):
    """Ends all ranks of an application on this node; `cancelled` means that a user requested it."""

    application: str
    reason: str
    cancelled: bool = False


class Claim(_Message, frozen=True):
    """Requests cores of the node, beside the loading workers of other programs; the reply is Granted."""

    cores: int  # how many are wanted; 0 releases all
    of: int  # how many all programs may use together


ToManager = Introduce | Launch | RankOrder | Kill | Claim

# ---- to the master


class Reported(_Message, frozen=True):
    """A rank's report."""

    application: str
    attempt: int
    report: Report


class Ended(msgspec.Struct):
    """All ranks of an application on a node have ended."""

    application: str
    attempt: int
    node: str
    codes: dict[int, int] = {}  # exit codes by rank; negative for a signal
    left: dict[int, Leaves] = {}  # by rank, if it reported that
    cause: str = ""  # why the first that failed did; "" if none failed
    killed: bool = False  # whether a signal that did not come from torchloader ended one
    cancelled: bool = False  # whether they were ended because a user requested it


class Joined(_Message, frozen=True):
    """A node has joined, with its resources and the latest attempts of the applications that were started on it."""

    node: str  # its host name
    incarnation: str  # a token of its application master, different after each restart
    address: str  # at which other nodes reach it
    cores: int  # CPUs that the run may use
    gpus: tuple[int, ...]  # the indexes of its GPUs
    memory: int  # in bytes
    running: Mapping[str, int]  # attempt by application
    ended: tuple[Ended, ...] = ()  # that were sent already, possibly to an earlier master
    gpu: str = ""  # the name of its GPUs; "" if it is not known, or they have different ones

    def has(self, application: str, attempt: int) -> bool:
        """Return whether ranks of this attempt run here, or have ended."""
        ended = ((each.application, each.attempt) for each in self.ended)
        return self.running.get(application) == attempt or (application, attempt) in ended


class Granted(_Message, frozen=True):
    """The cores of a node that the run may use, after a claim or a change."""

    node: str
    claim: Claim  # the latest claim
    cores: int  # how many of the cores that it wants are granted


class Submitted(_Message, frozen=True):
    """A job arrives."""

    job: Job


class AllSubmitted(_Message, frozen=True):
    """The workload has exactly these jobs, after which the master ends. If an earlier master took some without logging
    them, the message has no effect, and the next submitter sends it again."""

    names: frozenset[str]


# ---- of commands


class GetStatus(_Message, frozen=True):
    """Requests the nodes and the applications."""


class SubmitJob(_Message, frozen=True):
    """Submits a job."""

    job: Job


class StopWhenDone(_Message, frozen=True):
    """Ends a held workload when its applications have ended."""


class PauseApplication(_Message, frozen=True):
    """Saves a checkpoint of an application and stops it."""

    application: str


class ResumeApplication(_Message, frozen=True):
    """Continues a paused application."""

    application: str


class CancelApplication(_Message, frozen=True):
    """Ends an application."""

    application: str


class ResizeApplication(_Message, frozen=True):
    """Sets the number of loading workers per device of an application."""

    application: str
    workers: int


OfApplication = PauseApplication | ResumeApplication | CancelApplication | ResizeApplication
Command = GetStatus | SubmitJob | StopWhenDone | OfApplication


class Request(_Message, frozen=True):
    """A command, and the serialized queue for its reply, which is JSON. The queue is not sent as an object: it may be
    destroyed when the command's process ends, and deserializing the message would fail."""

    command: Command
    reply_to: bytes


ToMaster = Reported | Ended | Joined | Granted | Submitted | AllSubmitted | Request

CONTACT = "torchloader.json"
_CONTACT_TIMEOUT_S = 15.0


class Contact(msgspec.Struct, frozen=True):
    """The address of a master."""

    inbox: str  # the serialized queue of the master, as base64 text
    folder: str  # the folder of its log and traces


class NoMasterError(DragonError):
    """Raised if no master runs, or it does not reply; says what to do."""


def contacts(runs: Iterable[Path]) -> dict[Path, Contact]:
    """Return the contacts of those runs, given by their folders, that have a master."""
    found = {}
    for run in runs:
        try:
            found[run] = msgspec.json.decode((run / CONTACT).read_bytes(), type=Contact)
        except FileNotFoundError:
            continue
    return found


def request(run: Path, contact: Contact, command: Command) -> dict[str, Any]:
    """Return the master's reply to a command. This process joins the run. Raises NoMasterError."""
    os.environ["DRAGON_RUN"] = str(run)
    try:
        replies = Queue(1)
        Queue.attach(base64.b64decode(contact.inbox)).put(Request(command, replies.serialize()))
        reply: dict[str, Any] = msgspec.json.decode(replies.get(timeout=_CONTACT_TIMEOUT_S))
    except (DestroyedError, RunEndedError) as error:
        raise NoMasterError(f"the workload of {contact.folder} has ended meanwhile: {error}") from None
    except Empty:
        raise NoMasterError(
            f"the master did not answer in {_CONTACT_TIMEOUT_S:.0f} s; its log is in {contact.folder}"
        ) from None
    return reply
