"""`torchloader`: the command, which hands on to one module for each of its words."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence

import dragon

__all__ = ["main", "run_and_exit"]

_COMMANDS = {
    "run": "a whole workload on the nodes of this allocation, or rehearsed on this machine",
    "status": "what runs, where, how fast (--watch: again every second)",
    "submit": "more jobs for a workload that runs",
    "pause": "save a checkpoint of an application and stop it",
    "resume": "go on with one that was paused",
    "cancel": "end an application",
    "resize": "another number of loading workers for an application",
    "stop": "end a workload that was held open, after its last job",
    "simulate": "compare policies on a workload or a trace, without running it",
    "profile": "measure how fast a job trains with how many workers",
    "report": "a page and pictures of a run that has ended",
}
_USAGE = """\
usage: torchloader COMMAND ...

Run training jobs on a GPU cluster, and move data-loading workers between them to raise the total throughput.

{commands}

Each explains itself with --help. A first try, on any machine:
  torchloader run jobs.csv --device cpu --rehearse --iterations 5
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--version"]:
        print(f"torchloader {dragon.__version__}")
        return 0
    if words[:1] and words[0] in _COMMANDS:
        return int(importlib.import_module(f"torchloader.cli.{words[0]}").main(words[1:]))
    listed = "\n".join(f"  {name:<10} {what}" for name, what in _COMMANDS.items())
    usage = _USAGE.format(commands=listed)
    if words[:1] in (["-h"], ["--help"]):
        print(usage, end="")
        return 0
    wrong = f"there is no command {words[0]!r}" if words else "no command given"
    print(f"{usage}\ntorchloader: {wrong}", file=sys.stderr)
    return 2


def run_and_exit() -> None:
    """The entry point of the `torchloader` command."""
    try:
        code = main()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.exit(code)
