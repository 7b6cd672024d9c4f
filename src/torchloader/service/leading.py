"""The process that is the master."""

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

FAILED, DAMAGED = 10, 11  # exit codes that no exception leads to


def lead(inbox: Queue, managers: Mapping[str, Queue], settings: Settings) -> None:
    """Be the master until all applications of the workload have ended. Exit code FAILED where one of them failed,
    DAMAGED where the event log leads to no state to go on from."""
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
