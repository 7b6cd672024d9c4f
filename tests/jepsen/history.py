"""The history of what clients did: the begin and end of each operation, by the one clock of this machine, and its
result.

A client records an operation before it begins and again when it has returned. An operation that has not returned,
because its client was killed or because it raised an error that leaves this open, may have happened at any time since
its begin, or never.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dragon.infrastructure.errors import DragonError

__all__ = ["FINAL", "OPEN", "Operation", "Recorder", "gathered", "read", "write"]

FINAL = "final"  # the client that reads everything after all faults are over
# After these errors it is unknown whether the operation was done. Any other error is a violation.
OPEN = (DragonError, OSError, EOFError, MemoryError)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation. `ended` is None if the outcome is unknown; `error` says why. `broken` says that the error should
    not have been raised. In an explanation `error` is a note about the operation.
    """

    client: str
    object: str
    name: str
    given: Any
    begun: int
    ended: int | None = None
    result: Any = None
    error: str = ""
    broken: bool = False

    def __str__(self) -> str:
        end = f"{self.ended / 1e9:.6f}" if self.ended is not None else "?"
        outcome = repr(self.result) if self.ended is not None else f"unknown {self.error}".strip()
        what = f"{self.name}({'' if self.given is None else repr(self.given)}) of {self.object}"
        note = f" ({self.error})" if self.ended is not None and self.error else ""
        return f"{self.begun / 1e9:.6f} .. {end} {self.client}: {what} -> {outcome}{note}"


class Recorder:
    """Record what one client does, in a file of its own."""

    def __init__(self, folder: Path, client: str) -> None:
        self._file = os.open(folder / f"{client}.client", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._count = 0

    def do(self, what: str, name: str, given: Any, call: Callable[[], Any]) -> bool:
        """Run and record an operation; return whether it returned."""
        self._count += 1
        self._note("begun", time.monotonic_ns(), what, name, given)
        try:
            result = call()
        except OPEN as error:
            self._note("open", time.monotonic_ns(), f"{type(error).__name__}: {error}")
            return False
        except Exception as error:
            self._note("broken", time.monotonic_ns(), f"{type(error).__name__}: {error}")
            raise
        self._note("ended", time.monotonic_ns(), result)
        return True

    def _note(self, *words: Any) -> None:
        os.write(self._file, f"{json.dumps([self._count, *words])}\n".encode())


def gathered(folder: Path) -> list[Operation]:
    """Return the operations of all clients, sorted by their begin."""
    found: list[Operation] = []
    for file in folder.glob("*.client"):
        operations: dict[int, Operation] = {}
        for line in file.read_text().splitlines():
            number, what, at, *words = json.loads(line)
            if what == "begun":
                operations[number] = Operation(file.stem, words[0], words[1], words[2], at)
                continue
            known = asdict(operations[number])
            outcome = {"ended": at, "result": words[0]} if what == "ended" else {"error": words[0]}
            operations[number] = Operation(**{**known, **outcome, "broken": what == "broken"})
        found += operations.values()
    return sorted(found, key=lambda operation: operation.begun)


def write(file: Path, operations: Iterable[Operation]) -> None:
    """Write operations to a file, one per line."""
    file.write_text("".join(f"{json.dumps(asdict(operation))}\n" for operation in operations))


def read(file: Path) -> list[Operation]:
    """Read operations that write() wrote."""
    return [Operation(**json.loads(line)) for line in file.read_text().splitlines()]
