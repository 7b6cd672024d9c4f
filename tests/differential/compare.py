"""Compare what a program does with Dragon and with the standard library."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from differential.known import is_known
from differential.ways import HANGS, OURS, STANDARD, Way

__all__ = ["differences"]


def differences(ways: dict[str, Way], program: dict[str, Any]) -> list[str]:
    """Return each result of Dragon that equals none of the standard library's.

    If the standard library's results differ from each other, any of them is accepted; if they hang, Dragon's must only
    end.
    """
    with ThreadPoolExecutor(len(STANDARD)) as both:  # if the standard library hangs, it does so in both runs
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
