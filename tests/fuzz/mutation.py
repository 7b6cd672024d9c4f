"""Derive inputs from valid ones, as a fuzzer does: change, remove, repeat, insert or join bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hypothesis import strategies as st

__all__ = ["EXAMPLES", "mutated"]

# The number of inputs that each fuzzer draws; for more, overnight: FUZZ_EXAMPLES=100000 pytest tests/fuzz
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "300"))

_ODD = [
    b"",
    b"\0",
    b"\xff",
    b"\xff" * 4,
    b"\x80",
    b"\xc1",
    b"\xdf\xff\xff\xff\xff",
    b"A" * 5000,
    b"\r\n",
    b"-1",
    b"1e999",
]


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """Draw one of the seeds, changed up to four times."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 16)))
        match draw(st.sampled_from(["odd", "cut", "repeat", "join", "flip", "end"])):
            case "odd":
                data = data[:start] + draw(st.sampled_from(_ODD)) + data[end:]
            case "cut":
                data = data[:start] + data[end:]
            case "repeat":
                data = data[:end] + data[start:]
            case "join":
                data = data[:start] + draw(st.sampled_from(seeds))[start:]
            case "flip" if start < len(data):
                data = data[:start] + bytes([data[start] ^ 1 << draw(st.integers(0, 7))]) + data[start + 1 :]
            case "end":
                data = data[:start]
    return data
