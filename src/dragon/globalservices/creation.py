"""Starts the executable that a create message describes."""

from __future__ import annotations

import base64
import os
import pickle

import msgspec

from dragon.infrastructure.connection import Connection
from dragon.infrastructure.facts import PMIBackend
from dragon.infrastructure.policy import Policy
from dragon.infrastructure.variables import ARGUMENT_DATA
from dragon.native.queue import Queue
from dragon.runtime import placement, plan
from dragon.runtime.connection import connect_pipes
from dragon.runtime.run import this_run
from dragon.runtime.spawning import environment_changes, new_request, start
from dragon.runtime.streams import StreamArgument, output_of

__all__ = ["ProcessCreate", "start_process"]


class ProcessCreate(msgspec.Struct, frozen=True):
    """The description of an executable to start and its placement. get_create_message() makes it.

    Attributes:
        exe: the executable.
        run_dir: its working directory; empty for the creator's.
        args: its arguments.
        env: variables to set on top of the creator's environment.
        user_name: its name; empty for a default one.
        streams: stdin, stdout and stderr.
        policy: its placement; None for the default.
        argdata: the bytes for a Python program; None for none.
        umask: its umask; -1 for the creator's.
        pmi: how ranks of an MPI job find each other; None if it is not a rank.
    """

    exe: str
    run_dir: str
    args: list[str]
    env: dict[str, str]
    user_name: str
    streams: tuple[StreamArgument, StreamArgument, StreamArgument]
    policy: Policy | None
    argdata: bytes | None
    umask: int
    pmi: PMIBackend | None = None

    def serialize(self) -> str:
        """Return the message as text, which the functions of groups take as well."""
        return base64.b64encode(pickle.dumps(self)).decode()


def start_process(message: ProcessCreate, placed: placement.Placed) -> tuple[int, dict[int, Connection]]:
    """Start the process there. Returns its puid, and our ends of those of its streams that are a PIPE.

    Raises AttributeError if there is no such executable, OSError if it cannot be started.
    """
    folder = os.path.abspath(message.run_dir or ".")
    executable = placement.search_executable(message.exe, folder)
    request, _record = new_request(
        message.user_name,
        message.umask,
        executable=executable,
        arguments=message.args,
        folder=folder,
        cpus=placed.mask,
        node=placed.node.index,
        streams=[output_of(stream) for stream in message.streams],
    )
    environment = {**placed.environment, **message.env}
    if message.argdata is not None:
        # The process is attached to the queue before it runs, so this handle of it may be dropped.
        queue = Queue()
        queue.put(message.argdata)
        request.attached.append(queue._name())
        environment[ARGUMENT_DATA] = ",".join(map(str, queue._name()))
    request.environment = environment_changes(this_run(), environment)
    connections = connect_pipes(request.streams)
    start(request)
    plan.note(placed, request.name, plan.name_of(executable), request.puid)
    return request.puid, connections
