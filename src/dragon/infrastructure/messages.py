"""What the processes of a node say to each other over its sockets, as msgspec structs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import msgspec

from dragon.infrastructure.signals import hold_signals, release_signals

__all__ = [
    "FAREWELL",
    "SYNCHRONISE",
    "Instance",
    "Name",
    "NameGeneration",
    "NameOffset",
    "NameRole",
    "Output",
    "SerializedName",
    "Spawn",
    "Surroundings",
    "as_name",
    "decode_spawn",
    "decode_surroundings",
    "decoder_of",
    "encode",
    "joined",
]

# What an agent says to its zygote, besides the settings of its run.
SYNCHRONISE = b"?"  # tell what you have done so far
FAREWELL = b"."  # the end in order: the agent sees to the folder itself

# How a shared object is named: offset, generation, role. See dragon._core.
Name = tuple[int, int, int]

# The same as it comes from outside, as text or bytes.
NameOffset = Annotated[int, msgspec.Meta(ge=0, lt=2**48)]
NameGeneration = Annotated[int, msgspec.Meta(ge=0, lt=2**24)]
NameRole = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
SerializedName = tuple[NameOffset, NameGeneration, NameRole]


def as_name(received: Any) -> Name:
    """A name as it is once more, where msgpack has made a list of it."""
    return received[0], received[1], received[2]


class Output(msgspec.Struct, array_like=True):
    """Where a standard stream goes: "inherit", "null", "pipe", "stdout" (stderr only) or "file"."""

    kind: str = "inherit"
    path: str = ""
    channel: Name | None = None


class Spawn(msgspec.Struct, omit_defaults=True):
    """Start a process. With it go the descriptors of stdin, stdout and stderr, then any that the process inherits.

    For a Python function `payload` (or the object `payload_in`) holds what its bootstrap unpickles; for an executable
    `executable` and `arguments` are set.
    """

    puid: int
    record: Name
    name: str
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
    limits: list[int] = []  # as _core.current_limits() has them; empty: those of the run
    signals: list[int] = []  # as _core.current_signals() has them
    leave_running: bool = False  # what it started goes on after its end
    cpus: list[int] = []
    attached: list[Name] = []
    streams: list[Output] = []
    group: int = 0
    node: int = 0  # index of the node it is to run on
    descriptor_variables: list[str] = []  # which tell the numbers of the first descriptors that it inherits


class Instance(msgspec.Struct, array_like=True):
    """One process of a template, which stands at that place in a list of some."""

    template: int
    name: str
    cpus: list[int] = []
    environment: dict[str, str | None] = {}
    streams: list[Output] = []  # in place of the template's


class Surroundings(msgspec.Struct, omit_defaults=True):
    """What a Python process shares with its creator. The same for many, so the zygote takes it over for all."""

    path: list[str]
    arguments: list[str]
    authkey: bytes
    original_folder: str | None  # none where that had been removed
    start_method: str | None
    log_level: int | None = None
    log_to_stderr: bool = False
    options: list[str] = []  # of the interpreter; see runtime/interpreter.py
    warning_options: list[str] = []
    writes_bytecode: bool = True
    faulthandler: bool = False
    variables: list[str] = []  # that are read at a start, and that the process is given other than the run has them


def joined(lists: Iterable[bytes | msgspec.Raw]) -> msgspec.Raw:
    """Encoded lists as one, without a look at what is in them."""
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


def encode(message: Any) -> bytes:
    """A message as bytes. Raises ValueError for text that is not UTF-8; see system_text for a system's own."""
    try:
        return _encode(message)
    except UnicodeEncodeError as error:
        raise ValueError(f"{error.object!r} is not UTF-8, and cannot be handed to another process") from None


def decoder_of(what: Any) -> msgspec.msgpack.Decoder[Any]:
    """A decoder of what is of that type."""
    held = hold_signals()  # an interrupt in the making of a decoder makes msgspec crash (0.22)
    try:
        return msgspec.msgpack.Decoder(what)
    finally:
        release_signals(held)


decode_spawn: Callable[[bytes], Spawn] = decoder_of(Spawn).decode
decode_surroundings: Callable[[bytes], Surroundings] = decoder_of(Surroundings).decode
