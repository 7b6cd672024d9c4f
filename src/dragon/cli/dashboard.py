"""`dragon dashboard`: serves a web page that shows a run."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import webbrowser
from collections.abc import Sequence

from dragon.cli import watching
from dragon.commands import Parser
from dragon.web.dashboard import Dashboard
from dragon.web.http import serve

_EPILOG = """\
examples:
  dragon dashboard                  your run on this machine, if there is one
  dragon dashboard 3fa9c1 --open    one of several (see `dragon ps`), in your browser
  dragon --dashboard train.py       the same from the start, for as long as the program runs

The page is served on this machine only, and its link has a token. From elsewhere: ssh -L PORT:127.0.0.1:PORT HOST, with
a --port that you choose. A run without telemetry is measured while the page is served.
"""
_POLL_S = 0.5


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = Parser(
        prog="dragon dashboard",
        description="Serve a page that shows a run: what waits, what failed, charts, processes, a timeline.",
        epilog=_EPILOG,
    )
    result.add_argument("run", nargs="?", metavar="RUN", help="the run to show")
    result.add_argument("--port", type=int, default=0, help="TCP port of this machine (default: any free port)")
    result.add_argument("--open", action="store_true", help="open the page in a browser")
    return result


def main(words: Sequence[str]) -> int:
    """Serve the page until the run ends, or Ctrl-C. Returns the exit code."""
    arguments = parser().parse_args(words)
    if not 0 <= arguments.port < 2**16:
        parser().error(f"--port {arguments.port}: ports go up to 65535")
    with watching.choose(arguments.run) as run:
        asyncio.run(_serve(run, arguments.port, arguments.open))
    return 0


async def _serve(run: watching.Watched, port: int, show: bool) -> None:
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    dashboard = Dashboard(run.ask_soon)
    server = await serve(port, dashboard.routes)
    link = dashboard.link(f"http://127.0.0.1:{server.port}")
    print(f"{run.command}: {link}", flush=True)
    if show and not webbrowser.open(link):
        print("dragon dashboard: no browser can be opened here", file=sys.stderr)
    while run.lives and not over.is_set():
        try:
            async with asyncio.timeout(_POLL_S):
                await over.wait()
        except TimeoutError:
            continue
    if not over.is_set():
        print("the run is over")
    server.close()
