"""The page that shows a run: one file that contains all it needs."""

from __future__ import annotations

import html as html_text
import signal
from importlib.resources import files
from string import Template

import msgspec

from dragon.signals import name_of

SIGNALS = {number: name_of(number) for number in range(1, signal.NSIG)}
"""The names of the signals, by number."""

_ALONE = """<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
"""


def html(title: str = "dragon", data: object = None) -> str:
    """Return the page.

    Args:
        data: all that the page would request from a run. If it is given, the page requests nothing, and is not allowed
            to.
    """
    static = files("dragon.web") / "static"

    def text(name: str) -> str:
        return (static / name).read_text()

    # In a script element, "<" may begin its end tag, or hide it.
    embedded = msgspec.json.encode(data).decode().replace("<", "\\u003c") if data is not None else ""
    return Template(text("page.html")).substitute(
        title=html_text.escape(title),
        style=text("uPlot/uPlot.min.css") + text("page.css"),
        charts=text("uPlot/uPlot.iife.min.js"),
        script="".join(
            text(f"{name}.js") for name in ("data", "charts", "processes", "overview", "tasks", "timeline", "page")
        ),
        data=embedded,
        policy=_ALONE if data is not None else "",
    )
