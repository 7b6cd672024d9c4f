"""How commands reach the master of a running cluster, with the credentials of the run."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from pathlib import Path
from queue import Empty
from typing import Any

import msgspec

from dragon.infrastructure.errors import DestroyedError, RunEndedError
from dragon.native.queue import Queue
from torchloader.service.messages import Command, Request

CONTACT = "torchloader.json"
_CONTACT_TIMEOUT_S = 15.0


class Contact(msgspec.Struct, frozen=True):
    """The address of a master.

    Args:
        inbox: the serialized queue of the master, as base64 text.
        folder: the folder of its log and traces.
    """

    inbox: str
    folder: str


class NoMasterError(RuntimeError):
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
