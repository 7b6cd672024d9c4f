"""The request to start a process, which the core encodes and the zygote's core decodes: most programs send no other
message, and import msgspec for others only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dragon import _core

# The indices of the words of a process's record, and the values of the first.
STATUS, PID, CODE, ERROR = range(4)
SIGNALS = ERROR
"""In the record of a started process, which has no error: bit n - 1 is set if it was sent signal n."""
ASKED, RUNNING, EXITED, FAILED, LOST = range(5)
RECORD_WORDS = 4

UNNAMED = "dragon_process"
"""The kind of a process that is no worker of the runtime's own."""

# The name of a shared object: offset, generation, role. See dragon._core.
Name = tuple[int, int, int]


def as_name(received: Sequence[int]) -> Name:
    """Return a name as a tuple, which msgpack decodes as a list."""
    return received[0], received[1], received[2]


def default_name(kind: str, puid: int) -> str:
    """Return the name of a process that has none of its own."""
    return f"{kind}_{puid}"


class Output(NamedTuple):
    """The target of a standard stream: "inherit", "null", "pipe", "stdout" (stderr only), "file" or "forward": to the
    front end, or to the descriptor that `channel` stands for; see Streams.keep()."""

    kind: str = "inherit"
    path: str = ""
    channel: Name | None = None


class StartRequest:
    """Start a process, as described by messages.Spawn, which has the same fields."""

    name: str = ""
    puid: int = 0
    record: Name = (0, 0, 0)
    kind: str = UNNAMED
    parent: int = 0
    entry: str = ""
    payload: bytes = b""
    payload_in: Name | None = None
    payload_size: int = 0
    main: tuple[str, str] | None = None
    surroundings: bytes = b""
    executable: str = ""
    folder: str = ""
    umask: int = -1
    limits: list[int]
    signals: list[int]
    leave_running: bool = False
    cpus: list[int]
    group: int = 0
    node: int = 0

    def __init__(self, **fields: object) -> None:
        self.arguments: list[str] = []
        self.environment: dict[str, str | None] = {}
        self.attached: list[Name] = []
        self.streams: list[Output] = []
        vars(self).update(fields)

    def encode(self) -> bytes:
        """Return the request as the zygote receives it. Raises ValueError for text that is not UTF-8."""
        try:
            return _core.pack(vars(self))
        except UnicodeEncodeError as error:
            raise ValueError(f"{error.object!r} is not UTF-8, and cannot be handed to another process") from None
