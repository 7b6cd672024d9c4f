"""What clients did: when each operation was begun and when it returned, by the one clock of this machine, and what came
of it.

A client notes an operation before it begins and again when it has returned. One that has not returned, because its
client was killed or because it raised an error that leaves this open, may have happened at any time since, or never.
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

FINAL = "final"  # the client that looks at everything once all faults are mended
# After these nobody knows whether the operation was done. Any other error is a fault of its own.
OPEN = (DragonError, OSError, EOFError, MemoryError)


@dataclass(frozen=True, slots=True)
class Operation:
    """`ended` is None where the outcome is not known; `error` says why, and `broken` that it should not have been
    raised. In an explanation `error` is a note about it."""

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
    """Notes what one client does, in a file of its own."""

    def __init__(self, folder: Path, client: str) -> None:
        self._file = os.open(folder / f"{client}.client", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._count = 0

    def do(self, what: str, name: str, given: Any, call: Callable[[], Any]) -> bool:
        """Do it; whether it returned."""
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
    """What all clients noted, in the order of their beginnings."""
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
    """Keep them, one a line."""
    file.write_text("".join(f"{json.dumps(asdict(operation))}\n" for operation in operations))


def read(file: Path) -> list[Operation]:
    """What write() kept."""
    return [Operation(**json.loads(line)) for line in file.read_text().splitlines()]
