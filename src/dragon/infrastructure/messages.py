"""The messages between the processes of a node over its sockets, as msgspec structs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

from dragon.infrastructure.signals import hold_signals, release_signals
from dragon.infrastructure.start_request import UNNAMED, Name, Output
from dragon.infrastructure.structs import msgspec

# The parts of a name that is decoded from text or bytes of a program, with their valid ranges.
NameOffset = Annotated[int, msgspec.Meta(ge=0, lt=2**48)]
NameGeneration = Annotated[int, msgspec.Meta(ge=0, lt=2**24)]
NameRole = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
SerializedName = tuple[NameOffset, NameGeneration, NameRole]


class Spawn(msgspec.Struct, omit_defaults=True):
    """Start a process. The descriptors of stdin, stdout and stderr are sent along, then any that the process inherits.
    For a Python function, `payload` (or the object `payload_in`) has the pickle for its bootstrap; for an executable,
    `executable` and `arguments` are set. Who requests it from a zygote sets `puid`, `record` and `name`."""

    name: str = ""
    puid: int = 0
    record: Name = (0, 0, 0)
    kind: str = UNNAMED  # the name of a process that has none of its own, with its puid
    parent: int = 0
    entry: str = ""
    payload: bytes = b""
    payload_in: Name | None = None
    payload_size: int = 0
    main: tuple[str, str] | None = None
    surroundings: bytes = b""
    arguments: list[str] = []
    executable: str = ""
    folder: str = ""
    environment: dict[str, str | None] = {}
    umask: int = -1  # -1: that of the run
    limits: list[int] = []  # the value of _core.current_limits(); empty: those of the run
    signals: list[int] = []  # the value of _core.current_signals()
    leave_running: bool = False  # whether processes that it started may continue after its end
    cpus: list[int] = []
    attached: list[Name] = []
    streams: list[Output] = []
    group: int = 0
    node: int = 0  # index of the node on which it runs
    descriptor_variables: list[str] = []  # variables that are set to the numbers of the first inherited descriptors


class Instance(msgspec.Struct, array_like=True):
    """One process of the template with the index `template` in a list."""

    template: int
    name: str
    cpus: list[int] = []
    environment: dict[str, str | None] = {}
    streams: list[Output] = []  # replace the template's if not empty


def joined(lists: Iterable[bytes | msgspec.Raw]) -> msgspec.Raw:
    """Concatenate encoded lists without decoding their elements."""
    count, bodies = 0, []
    for encoded in lists:
        data = memoryview(encoded)
        # A msgpack array has its length in four bits of its first byte, or in two or four bytes after that.
        first = data[0]
        width = {0xDC: 2, 0xDD: 4}.get(first, 0)
        count += int.from_bytes(data[1 : 1 + width]) if width else first & 0xF
        bodies.append(data[1 + width :])
    return msgspec.Raw(b"".join([b"\xdd", count.to_bytes(4), *bodies]))


_encode = msgspec.msgpack.Encoder().encode


def encode(message: object) -> bytes:
    """Return a message as bytes."""
    try:
        return _encode(message)
    except UnicodeEncodeError as error:
        raise ValueError(f"{error.object!r} is not UTF-8, and cannot be handed to another process") from None


def decoder_of(what: object) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder for a type."""
    held = hold_signals()  # an interrupt while a decoder is made makes msgspec crash (0.22)
    try:
        return msgspec.msgpack.Decoder(what)
    finally:
        release_signals(held)


decode_spawn: Callable[[bytes], Spawn] = decoder_of(Spawn).decode
