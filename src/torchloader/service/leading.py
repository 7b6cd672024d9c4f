"""The master process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping

from dragon.native.queue import Queue
from torchloader.scheduling.log import FullError, LogError
from torchloader.service.answers import reply
from torchloader.service.master import Master
from torchloader.service.settings import Settings

__all__ = ["DAMAGED", "FAILED", "lead"]

FAILED, DAMAGED = 10, 11  # exit codes that an uncaught exception does not give


def lead(inbox: Queue, managers: Mapping[str, Queue], settings: Settings) -> None:
    """Run the master until all applications of the workload have ended.

    Exits with code FAILED if one of them failed, DAMAGED if the event log is invalid, 1 if it is locked or cannot be
    written.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        master = Master(inbox, managers, settings, reply)
    except LogError as error:
        print(f"torchloader: {error}", file=sys.stderr, flush=True)
        sys.exit(DAMAGED)
    except BlockingIOError as error:
        print(f"torchloader: {error.filename}: {error.strerror}", file=sys.stderr, flush=True)
        sys.exit(1)
    try:
        well = master.run()
    except FullError as error:
        print(f"torchloader: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    sys.exit(0 if well else FAILED)
