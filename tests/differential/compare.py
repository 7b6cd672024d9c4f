"""Whether a program does the same with Dragon as with the standard library."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from differential.known import is_known
from differential.ways import HANGS, OURS, STANDARD, Way

__all__ = ["differences"]


def differences(ways: dict[str, Way], program: dict[str, Any]) -> list[str]:
    """Every way of ours that does not give what one of the standard library's does.

    Where those differ from each other either will do, and where they hang ours must only end.
    """
    with ThreadPoolExecutor(len(STANDARD)) as both:  # where the standard library hangs it does so in both
        expected = dict(zip(STANDARD, both.map(lambda name: ways[name].run(program), STANDARD), strict=True))
    found = []
    for name in OURS:
        ours = ways[name].run(program)
        if ours == HANGS or isinstance(ours, str):
            found.append(f"{name}: {ours}")
        elif ours not in expected.values() and HANGS not in expected.values():
            standard = expected["fork"]
            if isinstance(standard, str):
                continue
            for step, theirs, mine in zip([*program["steps"], "finish"], standard, ours, strict=True):
                if theirs != mine and not is_known(program["kind"], step, theirs, mine):
                    found.append(f"{name}: {step} gave {mine} instead of {theirs}")
    return found
