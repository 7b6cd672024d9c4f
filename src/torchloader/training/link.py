"""The connection of a rank to its application master: it receives orders and sends reports without delaying
training."""

from __future__ import annotations

import base64
import enum
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from dragon.infrastructure.errors import DestroyedError, DragonError
from dragon.native.queue import Queue
from torchloader.training.protocol import Order, Progress, Report, Resize, decode_order, encode


def choose_device(device: str | torch.device | None, local_rank: int) -> torch.device:
    """Return the device of a rank. If it is a GPU, it becomes the current one."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device(device)
    if chosen.type == "cuda" and chosen.index is None:
        chosen = torch.device("cuda", local_rank % torch.cuda.device_count())
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return chosen


def make_process_group(device: torch.device, backend: str | None) -> None:
    """Make the default process group from torchrun's variables. By default it is nccl if every rank has its own GPU,
    and gloo otherwise: nccl fails for ranks that share one ("Duplicate GPU detected")."""
    if backend is not None or device.type != "cuda":
        dist.init_process_group(backend or "gloo")
        return
    store, rank, size = next(iter(rendezvous("env://")))
    # Ranks may number the same GPU differently.
    gpu = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    gpu = gpu or (os.environ.get("CUDA_VISIBLE_DEVICES"), device.index)
    store.set(f"torchloader/device/{rank}", f"{socket.gethostname()} {gpu}")
    devices = store.multi_get([f"torchloader/device/{each}" for each in range(size)])
    chosen = "nccl" if len(set(devices)) == size else "gloo"
    dist.init_process_group(chosen, store=store, rank=rank, world_size=size)


_AGREEMENT_INTERVAL_S = 0.1  # seconds between two agreements
_MOST = 100  # iterations between two agreements


class Decision(enum.IntEnum):
    """The order that a rank received; the largest of all ranks is followed."""

    NOTHING = 0
    SAVE = 1
    PAUSE = 2
    CANCEL = 3


class Agreement:
    """A decision that all ranks make together: all call after() after each iteration, and it returns the same to all.
    Every few iterations the ranks start an all-reduce of what they want, and of the time of the slowest iteration, on
    which that number depends; they read the result some iterations later, when it has arrived, so training does not
    wait for it. It begins and ends at the same iterations on all ranks, so none waits for one that has left. `group` is
    used for nothing else; None for a single rank."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self._done = self._due = 0
        self._interval = 1
        self._pending: tuple[dist.Work, torch.Tensor] | None = None

    def after(self, wanted: Decision, seconds: float) -> Decision:
        """Return what all ranks do now. `seconds` is how long this rank's iteration took."""
        if self._group is None:
            return wanted
        self._done += 1
        agreed = Decision.NOTHING
        if self._pending is not None:
            if self._done < self._due:
                return agreed
            agreed = self._outcome()
        if agreed < Decision.PAUSE:
            largest = torch.tensor([float(wanted), seconds], dtype=torch.float64)
            self._pending = dist.all_reduce(largest, dist.ReduceOp.MAX, self._group, async_op=True), largest
            self._due = self._done + self._interval
        return agreed

    def close(self) -> None:
        """Complete a pending agreement. All ranks must call this after the same iteration."""
        if self._pending is not None:
            self._outcome()

    def _outcome(self) -> Decision:
        assert self._pending is not None
        (work, largest), self._pending = self._pending, None
        work.wait()
        wanted, seconds = largest.tolist()
        self._interval = max(1, min(_MOST, int(_AGREEMENT_INTERVAL_S / max(seconds, 1e-9))))
        return Decision(int(wanted))


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """A rank's position from torchrun's variables, and what its application master adds to them."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    application: str = "training"  # the name under which its traces and checkpoints are kept
    folder: Path | None = None  # the folder of these; None outside of torchloader, where there are none
    workers: int | None = None  # loading workers at first; None outside of torchloader, where the program decides
    away: tuple[str, ...] | None = None  # the nodes of those workers that run on another node; None if they may not
    orders: str = ""  # the queue from the application master, as base64 of Queue.serialize()
    reports: str = ""  # and to it

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> RankEnvironment:
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


_LISTEN_TIMEOUT_S = 0.1  # seconds between two checks whether the thread is to end
_START_POLL_S = 0.005  # seconds between two checks whether workers have started
_GIVE_UP_S = 30.0  # seconds to wait for workers to start, or for space for a report

_log = logging.getLogger(__name__)


class Link:
    """The connection of one rank. Without queues no orders arrive, and reports are dropped. In a thread of its own it
    calls `obey` with each order, and `resized` when a resize is complete or has timed out, with the order, the number
    of workers, and the seconds that it took. `workers` returns the number of loading workers that take batches now."""

    def __init__(
        self,
        environment: RankEnvironment,
        obey: Callable[[Order], None],
        workers: Callable[[], int],
        resized: Callable[[Resize, int, float], None],
    ) -> None:
        self._obey, self._workers, self._resized = obey, workers, resized
        self._orders = _attached(environment.orders)
        self._reports = _attached(environment.reports)
        self._ended = threading.Event()
        self._changing: tuple[Resize, float] | None = None
        self._thread = threading.Thread(target=self._listen, name="orders", daemon=True)

    def start(self) -> None:
        """Start to receive orders, including those that were sent earlier."""
        if self._orders is not None:
            self._thread.start()

    def report(self, message: Report) -> None:
        """Send a report. A Progress report is dropped if the queue is full; the next one replaces it."""
        queue = self._reports
        if queue is None:
            return
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
        self._ended.set()
        if self._orders is not None:
            self._thread.join()

    def _listen(self) -> None:
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
    return Queue.attach(base64.b64decode(name, validate=True)) if name else None
