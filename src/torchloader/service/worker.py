"""A worker of a cluster: brings one node into it, and restarts the application master there."""

from __future__ import annotations

import signal
import time

from dragon.infrastructure.policy import Policy
from dragon.native.machine import current
from dragon.native.process import Process
from dragon.native.queue import Queue
from torchloader.service.application_master import manage
from torchloader.service.part import end_children

__all__ = ["end", "work"]

_RESTART_DELAY_S = 0.5  # seconds before a restart, so that a master that cannot start does not use up the node's time


def work(inbox: Queue, master: Queue) -> None:
    """Run the worker of this node. Never returns. Each new application master introduces itself to the master."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name = current().hostname
    here = Policy(placement=Policy.Placement.HOST_NAME, host_name=name)
    while True:
        process = Process(manage, (inbox, master), ident=f"application master on {name}", policy=here)
        process.start()
        process.join()
        end(process)
        time.sleep(_RESTART_DELAY_S)


def end(manager: Process) -> None:
    """End an application master, if it is alive, and the ranks that it started, which no process follows any more."""
    if manager.returncode is None:
        manager.kill()
        manager.join()
    for rank in manager.children():
        rank.kill()
        end_children(rank)
