"""The connection of a rank to its application master: it receives orders and sends reports without delaying
training."""

from __future__ import annotations

import base64
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchloader.training.protocol import Order, Progress, Report, Resize, decode_order, encode


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A rank's position from torchrun's variables, and what its application master adds to them.

    Args:
        rank, world_size, local_rank: as torchrun counts; a single rank by default.
        application: the name under which its traces and checkpoints are kept.
        folder: the folder of these; None outside of torchloader, where there are none.
        workers: loading workers at first; None outside of torchloader, where the program decides.
        away: the nodes of those workers that run on another node; None if they may not.
        orders, reports: the queues from and to the application master, as base64 of Queue.serialize().
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    application: str = "training"
    folder: Path | None = None
    workers: int | None = None
    away: tuple[str, ...] | None = None
    orders: str = ""
    reports: str = ""

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Surroundings:
        """Read the environment of this process. Raises ValueError, which names the variable, for an invalid number."""

        def number(name: str, otherwise: int) -> int:
            text = environment.get(name, "")
            if text and not text.isdecimal():
                raise ValueError(f"{name} must be a whole number, not {text!r}")
            return int(text) if text else otherwise

        rank = number("RANK", 0)
        folder, away = environment.get("TORCHLOADER_FOLDER"), environment.get("TORCHLOADER_WORKERS_AWAY")
        return cls(
            rank=rank,
            world_size=number("WORLD_SIZE", 1),
            local_rank=number("LOCAL_RANK", rank),
            application=environment.get("TORCHLOADER_APPLICATION") or "training",
            folder=Path(folder) if folder else None,
            workers=number("TORCHLOADER_WORKERS", 0) if environment.get("TORCHLOADER_WORKERS") else None,
            away=None if away is None else tuple(filter(None, away.split(","))),
            orders=environment.get("TORCHLOADER_ORDERS", ""),
            reports=environment.get("TORCHLOADER_REPORTS", ""),
        )


if TYPE_CHECKING:
    from dragon.native.queue import Queue


_LISTEN_TIMEOUT_S = 0.1  # seconds between two checks whether the thread is to end
_START_POLL_S = 0.005  # seconds between two checks whether workers have started
_GIVE_UP_S = 30.0  # seconds to wait for workers to start, or for space for a report

_log = logging.getLogger(__name__)


class Link:
    """The connection of one rank. Without queues no orders arrive, and reports are dropped.

    Args:
        surroundings: the environment of the rank.
        obey: called with each order, in a thread of the link.
        workers: returns the number of loading workers that take batches now.
        resized: called, in the same thread, when a resize is complete or has timed out: with the order, the number of
            workers, and the seconds that it took.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        obey: Callable[[Order], None],
        workers: Callable[[], int],
        resized: Callable[[Resize, int, float], None],
    ) -> None:
        self._obey, self._workers, self._resized = obey, workers, resized
        self._orders = _attached(surroundings.orders)
        self._reports = _attached(surroundings.reports)
        self._ended = threading.Event()
        self._changing: tuple[Resize, float] | None = None
        self._thread = threading.Thread(target=self._listen, name="orders", daemon=True)

    def start(self) -> None:
        """Start to receive orders, including those that were sent earlier."""
        if self._orders is not None:
            self._thread.start()

    def report(self, message: Report) -> None:
        """Send a report. A Progress report is dropped if the queue is full; the next one replaces it."""
        from queue import Full

        queue = self._reports
        if queue is None:
            return
        from dragon.infrastructure.errors import DestroyedError, DragonError

        try:
            if isinstance(message, Progress):
                queue.put(encode(message), block=False)
            else:
                queue.put(encode(message), timeout=_GIVE_UP_S)
        except Full:
            if not isinstance(message, Progress):
                _log.warning("the application master receives no reports: %s is lost", type(message).__name__)
        except (DestroyedError, DragonError) as error:
            self._reports = None
            _log.warning("the application master has ended, training continues without it: %s", error)

    def close(self) -> None:
        """Stop receiving orders."""
        self._ended.set()
        if self._orders is not None:
            self._thread.join()

    def _listen(self) -> None:
        from queue import Empty

        from dragon.infrastructure.errors import DestroyedError, DragonError

        assert self._orders is not None
        while not self._ended.is_set():
            try:
                data = self._orders.get(timeout=_START_POLL_S if self._changing else _LISTEN_TIMEOUT_S)
            except Empty:
                self._look()
            except (DestroyedError, DragonError) as error:
                _log.warning("no more orders can be received, training continues: %s", error)
                return
            else:
                self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            order = decode_order(data)
        except (ValueError, TypeError) as error:
            _log.warning("not an order of the application master: %s", error)
            return
        self._obey(order)
        if isinstance(order, Resize):
            self._changing = order, time.perf_counter()
            self._look()

    def _look(self) -> None:
        if self._changing is None:
            return
        order, since = self._changing
        seconds, workers = time.perf_counter() - since, self._workers()
        if workers == order.workers or seconds > _GIVE_UP_S:
            self._changing = None
            self._resized(order, workers, seconds)


def _attached(name: str) -> Queue | None:
    if not name:
        return None
    # Imported here, as a program that runs alone needs no runtime.
    from dragon.native.queue import Queue

    return Queue.attach(base64.b64decode(name, validate=True))
