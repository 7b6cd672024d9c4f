"""The entry point of `dragon`: Ctrl-C while its modules are being imported ends it silently, as it ends a
program in C."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from dragon import __version__


def _runs_here(words: list[str]) -> bool:
    """Return whether the command runs a program on this node, which other words and variables only may do: its agent
    can be started before the modules of the command are imported."""
    return (
        bool(words)
        and not words[0].startswith("-")
        and (words[0].endswith(".py") or os.sep in words[0])
        and os.path.exists(words[0])
        and not any(name in os.environ for name in ("SLURM_JOB_ID", "PBS_NODEFILE", "DRAGON_MULTI_NODE_OVERRIDE"))
    )


def _open_standard_streams() -> None:
    """Open the null device for closed standard streams, so that no other file gets their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def run_and_exit() -> None:
    _open_standard_streams()
    if sys.argv[1:] == ["--version"]:
        with suppress(OSError, AttributeError):  # the command says why
            print(f"dragon {__version__}", flush=True)
            return
    if _runs_here(sys.argv[1:]):
        from dragon.infrastructure.errors import DragonError
        from dragon.runtime.agent_start import start_agent

        with suppress(DragonError, OSError):  # the command says why
            start_agent()
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dragon.cli import main

    signal.signal(signal.SIGINT, handler)
    main.run_and_exit()
