"""Checks of the arguments of processes, made at the call: the system reports such errors later and with less detail."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dragon.infrastructure.generic import V
from dragon.infrastructure.plain_number import plain_number
from dragon.infrastructure.system import sendable

if TYPE_CHECKING:
    from dragon.infrastructure.start_request import Output

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
    from dragon.infrastructure.start_request import Output

    if isinstance(stream, str):
        return Output("file", sendable(stream))
    return Output({None: "inherit", PIPE: "pipe", STDOUT: "stdout", DEVNULL: "null"}[stream])


def checked_arguments(args: object) -> tuple[Any, ...]:
    """Return the arguments of a process as a tuple. Raises TypeError for a string or a single argument."""
    if args is None:
        return ()
    if not isinstance(args, Iterable) or isinstance(args, (str, bytes, Mapping)):
        raise TypeError(f"args must be a tuple or a list, also for one argument (args=[x]), not {args!r}")
    return tuple(args)


def checked_environment(env: object) -> dict[str, str]:
    """Return the variables of a process. Raises TypeError, and ValueError for a variable that no system accepts."""
    if not isinstance(env, Mapping | None):
        raise TypeError(f"env must map the names of variables to their values, not {env!r}")
    for key, value in (env or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"the environment must map strings to strings; {key!r} is set to {value!r}")
        if not key or "=" in key or "\0" in key + value:
            raise ValueError(f"no environment can have the variable {key!r} set to {value!r}")
    return dict(env or {})


def words_of(args: Iterable[Any]) -> list[str]:
    """Return the arguments of an executable as strings. Raises ValueError for one with a NUL."""
    words = [os.fspath(argument) if isinstance(argument, os.PathLike) else str(argument) for argument in args]
    for word in words:
        if "\0" in word:
            raise ValueError(f"an argument of an executable cannot hold a NUL: {word!r}")
    return words


def checked_seconds(name: str, value: V) -> V:
    """Return a number of seconds, or None, unchanged. Raises TypeError for anything else."""
    seconds: V = plain_number(value)
    if not isinstance(seconds, (int, float, type(None))):
        raise TypeError(f"{name} must be a number of seconds, or None, not {value!r}")
    return seconds


def checked_signal(sig: object) -> int:
    """Return the number of a signal, or 0. Raises TypeError or ValueError for anything else."""
    sig = plain_number(sig)
    if not isinstance(sig, int):
        raise TypeError(f"sig must be the number of a signal, such as signal.SIGTERM, not {sig!r}")
    if not 0 <= sig < signal.NSIG:
        raise ValueError(f"there is no signal {sig}: the numbers go up to {signal.NSIG - 1}")
    return sig
