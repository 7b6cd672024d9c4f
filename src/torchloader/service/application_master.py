"""Manages the applications of one node: starts their ranks, forwards orders, and reports what the ranks report and how
they end."""

from __future__ import annotations

import contextlib
import secrets
import signal
import threading
from queue import Empty
from typing import assert_never

from dragon.native.machine import current
from dragon.native.queue import Queue
from torchloader.service.gpus import model
from torchloader.service.lending import Share
from torchloader.service.messages import Claim, Ended, Introduce, Joined, Kill, Launch, Tell
from torchloader.service.part import Part


def manage(inbox: Queue, master: Queue) -> None:
    """Run the application master of this node. Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front end's to answer
    ApplicationMaster(inbox, master).run()


class ApplicationMaster:
    """Takes orders from its inbox. Each application has a thread that listens to its ranks."""

    def __init__(self, inbox: Queue, master: Queue) -> None:
        self._inbox = inbox
        self._master = master
        self._parts: dict[str, Part] = {}
        self._ended: dict[str, Ended] = {}
        self._node = current()
        self._share = Share(self._node.hostname)
        self._incarnation = secrets.token_hex(8)

    def run(self) -> None:
        """Execute the orders of the master. Never returns."""
        self._introduce()
        while True:
            if (granted := self._share.news()) is not None:
                self._master.put(granted)
            try:
                order: Introduce | Launch | Tell | Kill | Claim = self._inbox.get(timeout=1.0)
            except Empty:
                continue
            match order:
                case Introduce():
                    self._introduce()
                case Launch():
                    self._launch(order)
                case Tell():
                    with contextlib.suppress(KeyError):  # it has just ended, which the master will hear
                        self._parts[order.application].tell(order.order)
                case Kill():
                    with contextlib.suppress(KeyError):
                        self._parts[order.application].kill(order.reason, order.cancelled)
                case Claim():
                    self._master.put(self._share.claim(order))
                case _:
                    assert_never(order)

    def _introduce(self) -> None:
        node = self._node
        # In this order: what ends meanwhile is reported twice rather than not at all.
        running = {name: part.attempt for name, part in list(self._parts.items())}
        ended = tuple(self._ended.values())
        gpus = tuple(int(gpu) for gpu in node.gpus or ())
        address = next(iter(node.ip), "127.0.0.1").partition(":")[0]
        self._master.put(
            Joined(
                node.hostname,
                self._incarnation,
                address,
                node.num_cpus,
                gpus,
                node.physical_mem,
                running,
                ended,
                model() if gpus else "",
            )
        )

    def _launch(self, launch: Launch) -> None:
        part = Part(launch, self._node.hostname, self._master)
        self._parts[launch.application] = part
        self._ended.pop(launch.application, None)
        threading.Thread(target=self._follow, args=(part,), name=launch.application, daemon=True).start()

    def _follow(self, part: Part) -> None:
        """Follow a part until it has ended, and report that to the master."""
        ended = part.run()
        if self._parts.get(ended.application) is part:
            # Kept before it is reported, since the master may be killed before it has handled the message.
            self._ended[ended.application] = ended
            del self._parts[ended.application]
        self._master.put(ended)
        part.end_what_ranks_started()
