"""The entry point of `dragon`: Ctrl-C while its modules are being imported ends it silently, as it ends a
program in C."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress

from dragon import __version__


def run_and_exit() -> None:
    if sys.argv[1:] == ["--version"]:
        with suppress(OSError, AttributeError):  # the command says why
            print(f"dragon {__version__}", flush=True)
            return
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dragon.cli import main

    signal.signal(signal.SIGINT, handler)
    main.run_and_exit()
