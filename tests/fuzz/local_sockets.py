"""Send invalid requests to the agent and the zygote of this program's run, which must continue unchanged.

python local_sockets.py requests|frames|starts EXAMPLES
"""

from __future__ import annotations

import socket
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragon.data.ddict import DDict
from dragon.infrastructure.messages import encode
from dragon.infrastructure.private import connect_within
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.runtime import spawning
from dragon.runtime.protocol import objects, run, shards, telemetry  # noqa: F401 (their kinds of requests)
from dragon.runtime.protocol.groups import CreateGroup
from dragon.runtime.protocol.request import BetweenAgents, Request, frame, tag_of
from dragon.runtime.protocol.run import EndRun, KillProcess, StartElsewhere
from dragon.runtime.run import this_run
from fuzz.mutation import mutated

PATIENCE = 60
# These requests end a process of the run, or all of them, as they should.
HARMFUL = {KillProcess, EndRun}
# What these start is covered by `starts`, which is sent to the zygote.
STARTING = {CreateGroup, StartElsewhere}


def kinds_below(kind: type[Request[Any]]) -> list[type[Request[Any]]]:
    """Return the requests that processes send: classes without subclasses."""
    below = [] if kind is BetweenAgents else kind.__subclasses__()
    return [each for one in below for each in kinds_below(one)] if below else [kind]


KINDS = [kind for kind in kinds_below(Request) if kind not in HARMFUL | {BetweenAgents}]

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.integers(0, 9) | st.floats() | st.text(max_size=9)
    | st.binary(max_size=9) | st.tuples(st.integers(0, 2**20), st.integers(0, 3), st.integers(0, 600)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def lists(of: Any, *_: Any) -> st.SearchStrategy[Any]:
    return st.lists(of_type(of), max_size=3)


def tuples(*of: Any) -> st.SearchStrategy[Any]:
    if of == (int, int, int):  # a name
        return st.tuples(st.integers(0, 2**20), st.integers(0, 3), st.integers(0, 600))
    return lists(*of) if ... in of else st.tuples(*map(of_type, of))


def unions(*of: Any) -> st.SearchStrategy[Any]:
    return st.one_of(map(of_type, of))


def dictionaries(*of: Any) -> st.SearchStrategy[Any]:
    return st.dictionaries(*map(of_type, of), max_size=3)


BUILT_OF = {
    dict: dictionaries,
    list: lists,
    Sequence: lists,
    tuple: tuples,
    types.UnionType: unions,
    typing.Union: unions,
}


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Draw values that a field of this type may hold, except very large numbers: a program may request more than
    exists.
    """
    if hint in (Any, object, int):
        return st.integers(-1, 600) if hint is int else values
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return st.builds(hint, **{name: of_type(field) for name, field in get_type_hints(hint).items()})
    built = BUILT_OF.get(get_origin(hint))
    return built(*get_args(hint)) if built is not None else st.from_type(hint)


def fields_of(kind: type[Request[object]]) -> dict[str, st.SearchStrategy[Any]]:
    hints = get_type_hints(kind)
    return {name: values if kind in STARTING else of_type(hints[name]) for name in kind.__struct_fields__}


FIELDS = {kind: fields_of(kind) for kind in KINDS}


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Draw a request with fields of the right types, or of any type."""
    kind = draw(st.sampled_from(KINDS))
    given = [draw(field) for field in FIELDS[kind].values()]
    if given and not draw(st.integers(0, 3)):
        given[draw(st.integers(0, len(given) - 1))] = draw(values)
    if given and not draw(st.integers(0, 9)):
        given.pop()
    return frame(encode((tag_of(kind), *given)))


def said(data: bytes) -> None:
    """Send a frame to the agent, over a new connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connect_within(this_run().folder, "agent", connection)
        connection.settimeout(0.002)
        try:
            connection.sendall(data)
            connection.recv(2**16)
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            return  # the agent waits for more data, or would receive nothing more


def sent(data: bytes) -> None:
    """Send a frame to the zygote."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as zygote:
        connect_within(this_run().folder, "zygote", zygote)
        zygote.send(data)


def starts() -> list[bytes]:
    """Draw start requests as they are sent."""
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
    """Assert that processes still start and end, and that objects are unchanged."""
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
