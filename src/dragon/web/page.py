"""The page to look at a run with: one file, with all that it needs in it."""

from __future__ import annotations

import html as html_text
import signal
from importlib.resources import files
from string import Template

import msgspec

from dragon.signals import name_of

__all__ = ["SIGNALS", "html"]

SIGNALS = {number: name_of(number) for number in range(1, signal.NSIG)}
"""Their names by number."""

_ALONE = """<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
"""


def html(title: str = "dragon", data: object = None) -> str:
    """The page. With `data`, all that it would ask a run for, it asks nobody, and is not allowed to."""
    static = files("dragon.web") / "static"

    def text(name: str) -> str:
        return (static / name).read_text()

    # In a script element "<" may end it, or keep it from ending.
    embedded = msgspec.json.encode(data).decode().replace("<", "\\u003c") if data is not None else ""
    return Template(text("page.html")).substitute(
        title=html_text.escape(title),
        style=text("uPlot/uPlot.min.css") + text("page.css"),
        charts=text("uPlot/uPlot.iife.min.js"),
        script="".join(text(f"{name}.js") for name in ("data", "charts", "processes", "overview", "timeline", "page")),
        data=embedded,
        policy=_ALONE if data is not None else "",
    )
