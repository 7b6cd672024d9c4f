"""`dragon dashboard`: serves a web page that shows a run, or writes that of a recorded one."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from dragon.cli import watching
from dragon.commands import Parser
from dragon.files import whole_file
from dragon.telemetry.recording import Recording
from dragon.web.dashboard import Dashboard
from dragon.web.http import serve

_EPILOG = """\
examples:
  dragon dashboard                  your run on this machine, if there is one
  dragon dashboard 3fa9c1 --open    one of several (see `dragon ps`), in your browser
  dragon --dashboard train.py       the same from the start, for as long as the program runs
  dragon dashboard runs             write the page of the newest run that was recorded with --telemetry runs, one file
  dragon dashboard runs -o a.html   write it to that file; - is stdout

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
    result.add_argument("run", nargs="?", metavar="RUN", help="the run to show, or a folder with a recorded one")
    result.add_argument("--port", type=int, default=0, help="TCP port of this machine (default: any free port)")
    result.add_argument("--open", action="store_true", help="open the page in a browser")
    recorded = result.add_argument_group("of a recorded run")
    recorded.add_argument("-o", "--output", metavar="FILE", help="default: dashboard.html in the run's folder")
    recorded.add_argument(
        "--node", action="append", default=[], metavar="HOST", help="a node to show charts of; may be repeated"
    )
    return result


def main(words: Sequence[str]) -> int:
    """Serve the page until the run ends, or Ctrl-C; write that of a recorded run. Returns the exit code."""
    arguments = parser().parse_args(words)
    if arguments.run is not None and os.path.isdir(arguments.run):
        _write(Path(arguments.run), arguments.output, arguments.node, arguments.open)
        return 0
    if arguments.output or arguments.node:
        parser().error(f"--output and --node: only for a recorded run, and {arguments.run!r} is not a folder of one")
    if not 0 <= arguments.port < 2**16:
        parser().error(f"--port {arguments.port}: ports go up to 65535")
    with watching.choose(arguments.run) as run:
        asyncio.run(_serve(run, arguments.port, arguments.open))
    return 0


def _write(folder: Path, output: str | None, hosts: Sequence[str], show: bool) -> None:
    """Write the page of a recorded run, and print its path."""
    from dragon.telemetry.recorded_page import recorded_page

    recording = Recording(folder)
    page = recorded_page(recording, hosts)
    if output == "-":
        print(page)
        return
    path = Path(output) if output else recording.folder / "dashboard.html"
    with whole_file(path) as file:
        file.write_text(page)
    print(path)
    if show:
        _open(path.resolve().as_uri())


def _open(link: str) -> None:
    if not webbrowser.open(link):
        print("dragon dashboard: no browser can be opened here", file=sys.stderr)


async def _serve(run: watching.Watched, port: int, show: bool) -> None:
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    dashboard = Dashboard(run.ask_soon)
    server = await serve(port, dashboard.routes)
    link = dashboard.link(f"http://127.0.0.1:{server.port}")
    print(f"{run.command}: {link}", flush=True)
    if show:
        _open(link)
    while run.lives and not over.is_set():
        try:
            async with asyncio.timeout(_POLL_S):
                await over.wait()
        except TimeoutError:
            continue
    if not over.is_set():
        print("the run is over")
    server.close()
