"""Says odd things to the agent and the zygote of this program's run, which must go on as if nothing had been said.

python local_sockets.py requests|frames|starts EXAMPLES
"""

from __future__ import annotations

import inspect
import socket
import sys
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragon.agent.groups.groups import Groups
from dragon.agent.groups.named_groups import NamedGroups
from dragon.agent.mpi.jobs import Jobs
from dragon.agent.objects.named_objects import NamedObjects
from dragon.agent.objects.remote_objects import RemoteObjects
from dragon.agent.processes.registry import Registry
from dragon.agent.processes.starting import Processes
from dragon.agent.processes.trackers import Trackers
from dragon.agent.shards.shards import Shards
from dragon.agent.telemetry.service import Telemetry
from dragon.data.ddict import DDict
from dragon.infrastructure.messages import Request, encode
from dragon.infrastructure.private import connect_within
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.runtime import spawning
from dragon.runtime.run import this_run
from fuzz.mutation import mutated

PATIENCE = 60
PARTS: dict[str, Any] = {
    "groups": Groups,
    "jobs": Jobs,
    "named_groups": NamedGroups,
    "named_objects": NamedObjects,
    "processes": Processes,
    "registry": Registry,
    "remote": RemoteObjects,
    "shards": Shards,
    "telemetry": Telemetry,
    "trackers": Trackers,
}
# They end a process of the run, as asked.
HARMFUL = {"registry.kill", "registry.end_started_by"}
OPERATIONS = sorted(
    operation
    for part, served in PARTS.items()
    for operation in (f"{part}.{name}" for name in served.OPERATIONS)
    if operation not in HARMFUL
)

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.integers(0, 9) | st.floats() | st.text(max_size=9)
    | st.binary(max_size=9) | st.tuples(st.integers(0, 2**20), st.integers(0, 3), st.integers(0, 600)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request with arguments of the right names, and of any kind."""
    operation = draw(st.sampled_from(OPERATIONS))
    part, _, name = operation.partition(".")
    names = [
        each for each in inspect.signature(getattr(PARTS[part], name)).parameters
        if each not in ("self", "caller", "descriptors")
    ]  # fmt: skip
    body = encode(Request(operation, {each: draw(values) for each in names if draw(st.integers(0, 9))}))
    return len(body).to_bytes(4, "little") + body


def said(data: bytes) -> None:
    """Say it to the agent, over a connection of its own."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connect_within(this_run().folder, "agent", connection)
        connection.settimeout(0.002)
        try:
            connection.sendall(data)
            connection.recv(2**16)
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            return  # it waits for more, or would hear no more


def sent(data: bytes) -> None:
    """Send it to the zygote."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as zygote:
        connect_within(this_run().folder, "zygote", zygote)
        zygote.send(data)


def starts() -> list[bytes]:
    """Start requests as they are sent."""
    seen: list[bytes] = []
    send = spawning.send_request

    def note(zygote: socket.socket, request: bytes, descriptors: Any) -> None:
        seen.append(request)
        send(zygote, request, descriptors)

    spawning.send_request = note
    for target, arguments in ((abs, (1,)), ("/bin/true", ["x"])):
        process = Process(target, arguments)
        process.start()
        process.join()
    spawning.send_request = send
    return seen


def put(queue: Queue, value: Any) -> None:
    queue.put(value)


def goes_on(queue: Queue, ddict: DDict) -> None:
    """Processes start and end, and objects are as they were."""
    assert queue.empty()
    process = Process(put, (queue, 7))
    process.start()
    assert queue.get(timeout=PATIENCE) == 7
    process.join(PATIENCE)
    assert process.returncode == 0
    assert ddict["key"] == "value"


def main(what: str, examples: int) -> None:
    queue, ddict = Queue(), DDict(1, 1, 2**22)
    ddict["key"] = "value"
    count = 0
    whole = [bytes.fromhex("01000000c0"), bytes.fromhex("ffffffff")]
    frames = requests().flatmap(lambda data: mutated([data, *whole]))
    ways: dict[str, tuple[Any, Callable[[bytes], None]]] = {
        "requests": (requests(), said),
        "frames": (frames, said),
        "starts": (mutated(starts()), sent),
    }
    inputs, say = ways[what]

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(inputs)
    def each(data: bytes) -> None:
        nonlocal count
        count += 1
        say(data)
        if count % 25 == 0:
            goes_on(queue, ddict)

    each()
    goes_on(queue, ddict)
    print("the run went on")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
