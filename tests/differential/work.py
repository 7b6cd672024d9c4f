"""Functions that the programs' processes run. They are importable, so that every start method finds them."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from typing import Any

state: dict[str, Any] = {"initialized": None}


class OddError(Exception):
    """An exception that cannot be rebuilt from its args."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)
        self.second = second


def initialize(value: Any) -> None:
    state["initialized"] = value


def initialized(_: Any) -> Any:
    return state["initialized"]


def same(x: Any) -> Any:
    return x


def double(x: Any) -> Any:
    return x + x


def fail(x: Any) -> Any:
    raise ValueError(x)


def fail_if_odd(x: int) -> int:
    if x % 2:
        raise KeyError(x)
    return x


def fail_oddly(x: Any) -> Any:
    raise OddError("a", "b")


def nothing(*args: Any) -> None:
    pass


def large(x: int) -> int:
    return len(bytes(200_000) * (1 + x % 3))


def large_result(x: int) -> bytes:
    return bytes(100_000 + x % 7)


def add(a: Any, b: Any) -> Any:
    return a + b


def put_all(queue: Any, values: list[Any]) -> None:
    for value in values:
        queue.put(value)


def echo(connection: Any, count: int) -> None:
    for _ in range(count):
        connection.send(connection.recv())


def increment(value: Any, count: int) -> None:
    for _ in range(count):
        with value.get_lock():
            value.value += 1


def edit(shared: Any) -> None:
    shared.buf[0] = 7


def change(mapping: Any, key: Any, value: Any) -> None:
    mapping[key] = value


def end(how: str) -> None:
    """End this process in one of many ways."""
    match how:
        case "return":
            return
        case "raise":
            sys.stderr = io.StringIO()
            raise ValueError(how)
        case "exit 0" | "exit 3" | "exit 300" | "exit -1":
            sys.exit(int(how.split()[1]))
        case "exit none":
            sys.exit(None)
        case "exit text":
            sys.stderr = io.StringIO()
            sys.exit("text")
        case "os._exit":
            os._exit(5)
        case "kill" | "term" | "abrt":
            os.kill(os.getpid(), getattr(signal, f"SIG{how.upper()}"))
        case "sleep":
            time.sleep(60)
