"""The page that Prometheus reads: the newest values of all nodes in its text format, 0.0.4."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable

import msgspec

from dragon.infrastructure.metrics import Family, exported_name, merged
from dragon.web.ask import Ask
from dragon.web.http import Handler, Request, Response

__all__ = ["page"]

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def page(ask: Ask) -> Handler:
    """Answers with the metrics of a run."""

    async def answer(request: Request) -> Response:
        told = msgspec.convert(await ask("telemetry.families", {}), list[Family])
        # Beside the loop: with hundreds of nodes it takes a few tenths of a second.
        return Response(await asyncio.to_thread(_render, told), _CONTENT_TYPE)

    return answer


def _render(told: Iterable[Family]) -> bytes:
    """The families of all nodes as one page, on which each metric comes once."""
    return "".join(map(_text, merged(told))).encode()


def _text(family: Family) -> str:
    lines = {}  # by the name and labels, which must not come twice
    for suffix, tags, value in family.samples:
        labels = {exported_name(tag).replace(":", "_"): text for tag, text in tags.items()}
        told = ",".join(f'{tag}="{_escaped(text, quote=True)}"' for tag, text in labels.items())
        lines[f"{family.name}{suffix}{{{told}}}"] = _number(value)
    head = f"# HELP {family.name} {_escaped(family.meaning)}\n# TYPE {family.name} {family.kind}\n"
    return head + "".join(f"{name} {value}\n" for name, value in lines.items())


def _escaped(text: str, quote: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quote else text


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
