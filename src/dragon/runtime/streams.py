"""The arguments that say what the standard streams of a process are."""

from __future__ import annotations

import os

from dragon.infrastructure.messages import Output
from dragon.infrastructure.system import sendable

PIPE, STDOUT, DEVNULL = -1, -2, -3
StreamArgument = int | str | None


def checked_stream(name: str, value: StreamArgument) -> StreamArgument:
    """Return the argument for the stream `name`, a path as text. Raises ValueError for an invalid one."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value == "":
        raise ValueError(f"{name} file path must be non-empty")
    if isinstance(value, str) and name != "stdin":
        if "\0" in value:
            raise ValueError(f"no file can have the name {value!r} ({name})")
        return value
    allowed = (None, PIPE, DEVNULL, STDOUT) if name == "stderr" else (None, PIPE, DEVNULL)
    if value not in allowed:
        choices = {"stdin": "None, PIPE or DEVNULL", "stdout": "None, PIPE, DEVNULL or the path of a file"}
        either = choices.get(name, "None, PIPE, DEVNULL, STDOUT or the path of a file")
        raise ValueError(f"{name} must be {either}, not {value!r}")
    return value


def output_of(stream: StreamArgument) -> Output:
    """Return a stream argument in the form that the zygote takes."""
    if isinstance(stream, str):
        return Output("file", sendable(stream))
    return Output({None: "inherit", PIPE: "pipe", STDOUT: "stdout", DEVNULL: "null"}[stream])
