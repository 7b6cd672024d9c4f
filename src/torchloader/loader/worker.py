"""A loading worker: a process that makes batches until it is dismissed or its trainer has ended."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import sys
from collections import deque
from queue import Empty
from typing import Any, NamedTuple

import psutil

from dragon.forking import be_daemon
from dragon.native.event import Event
from dragon.native.queue import Queue
from dragon.native.value import Value
from dragon.serialization import SnapshotGoneError
from torchloader.loader import options
from torchloader.loader.exchange import Exchange, SharedBatch, key_of
from torchloader.loader.making import Maker
from torchloader.loader.messages import Effort, Meter, Packed, pack, pack_error, pack_unsent
from torchloader.loader.snapshot import received
from torchloader.loader.streams import Progress, Task

_LOOK_AFTER_TRAINER_S = 1.0  # seconds
# Of mallopt(), in <malloc.h>; the GNU C Library's manual, "Malloc Tunable Parameters".
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_KEPT = 512 << 20  # bytes at the end of the heap
# What users set to have another number: for any library, and for OpenBLAS, MKL and BLIS.
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


# The process of the trainer, what is set to dismiss this worker, and the number of the first iteration that goes on.
Orders = tuple[int, Event, Value]


class Shipment(NamedTuple):
    """A snapshot of the dataset. The worker discards all snapshots whose numbers are not in `needed`."""

    dataset: int
    needed: set[int]
    content: Any  # a snapshot of a Maker; to a worker it comes as received() takes it
    seed: int  # of worker_init_fn, which no other worker or epoch has


class Release(NamedTuple):
    """Tells a worker that another one continues a stream."""

    dataset: int
    iteration: int
    stream: int


class Ready(NamedTuple):
    """Sent when a worker has begun, or failed to, and when it cannot load a snapshot that is no longer on its node."""

    worker: int
    error: Packed | None
    lacks: int | None = None  # the number of that snapshot


class Made(NamedTuple):
    """A batch, or the error that was raised, and the cost of making it and of sending the one before it."""

    worker: int
    iteration: int
    number: int
    effort: Effort
    outcome: Packed
    samples: int
    progress: Progress | None
    is_shared: bool = False  # made by a worker of another loader
    kept: SharedBatch | None = None  # for other loaders


class Trainer:
    """The state of the trainer, which a worker on its node checks before each batch. One on another node, without
    `orders`, does not, as each check would be a round trip."""

    def __init__(self, orders: Orders | None) -> None:
        self._orders = orders
        self._process = None if orders is None else psutil.Process(orders[0])

    @property
    def dismisses(self) -> bool:
        return self._orders is not None and bool(self._orders[1].is_set())

    def needs(self, iteration: int) -> bool:
        return self._orders is None or bool(iteration >= self._orders[2].value)

    @property
    def is_gone(self) -> bool:
        try:
            known = self._process
            return known is not None and (not known.is_running() or known.status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True


def work(worker: int, place: tuple[int, int], nice: int, tasks: Queue, results: Queue, orders: Orders | None) -> None:
    """Make batches until dismissed: the main function of a loading worker."""
    options.is_worker = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer's to answer
    os.nice(nice)
    _keep_freed_memory()
    try:
        be_daemon(f"LoadingWorker-{worker + 1}", worker + 1, os.getppid() if orders is None else orders[0])
        trainer = Trainer(orders)
    except (ProcessLookupError, psutil.NoSuchProcess):
        return
    makers: dict[int, Maker] = {}
    exchange: Exchange | None = None
    meter, sending = Meter(), Effort()
    has_begun = False
    postponed: list[Task | Release] = []  # until the snapshot comes that they need
    backlog: deque[Task | Release] = deque()
    while not trainer.dismisses:
        try:
            message: Task | Shipment | Release | None
            message = backlog.popleft() if backlog else tasks.get(timeout=_LOOK_AFTER_TRAINER_S)
            if isinstance(message, Shipment):
                lacks = _take_in(message, makers, *place)
                backlog.extend(each for each in postponed if each.dataset in message.needed)
                postponed.clear()
                if not has_begun or lacks is not None:
                    results.put(Ready(worker, None, lacks))
                has_begun = True
                continue
        except Empty:
            if trainer.is_gone:
                return
            continue
        except Exception as error:
            results.put(Ready(worker, pack_error(error)))
            return
        if message is None or trainer.dismisses:
            return
        if message.dataset not in makers:
            postponed.append(message)
        elif isinstance(message, Release):
            makers[message.dataset].release(message.iteration, message.stream)
        elif trainer.needs(message.iteration):
            start, maker = meter.now(), makers[message.dataset]
            exchange = exchange or _exchange_of(maker)
            made = _make_or_take(worker, maker, message, exchange, trainer)
            spent = meter.now()
            _deliver(results, made._replace(effort=spent.since(start).plus(sending)))
            sending = meter.now().since(spent)
        elif trainer.is_gone:
            return


def _take_in(shipment: Shipment, makers: dict[int, Maker], slot: int, workers: int) -> int | None:
    """Add the maker of a shipment, and remove those no longer needed. Returns its number if it cannot be loaded."""
    for number in makers.keys() - shipment.needed:
        del makers[number]
    try:
        maker = received(shipment.content)
    except SnapshotGoneError:
        return shipment.dataset
    _use_one_thread()
    if maker.is_map_style:  # otherwise each stream does this
        maker.be_worker(slot, workers, shipment.seed)
    makers[shipment.dataset] = maker
    return None


def _make(worker: int, maker: Maker, task: Task) -> Made:
    made = maker.make(task)
    return Made(worker, task.iteration, task.number, Effort(), pack(made), made.samples, made.progress)


def _exchange_of(maker: Maker) -> Exchange | None:
    """Return the access to shared batches, if they are enabled and this is the trainer's node; else None."""
    try:
        return None if maker.membership is None else Exchange(maker.membership)
    except FileNotFoundError:  # of another node, or the loader is closed
        maker.membership = None
        return None


def _make_or_take(worker: int, maker: Maker, task: Task, exchange: Exchange | None, trainer: Trainer) -> Made:
    """Make the batch, or take it from a worker of another loader."""
    if exchange is None:
        return _make(worker, maker, task)
    made: list[Made] = []

    def make() -> Packed:
        made.append(_make(worker, maker, task))
        return made[-1].outcome

    packed, is_shared, kept = exchange.get(key_of(maker.seed, task), make, lambda: trainer.dismisses, task.number == 0)
    if made:
        return made[-1]._replace(outcome=packed, kept=kept)
    samples = len(task.indices) if isinstance(task.indices, list) else 1
    return Made(worker, task.iteration, task.number, Effort(), packed, samples, None, is_shared)


def _deliver(results: Queue, made: Made) -> None:
    try:
        results.put(made)
    except Exception as error:  # such as that there is no memory for it
        results.put(made._replace(outcome=pack_unsent(error)))


def _keep_freed_memory() -> None:
    """Keep freed memory for the next batch, unless the environment says how the C library is to allocate."""
    # By default the GNU C Library returns large blocks to the system at once. A worker that makes one large batch after
    # another then gets new pages for each, which the kernel clears: that takes longer than to make the batch.
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)


def _use_one_thread() -> None:
    """Make PyTorch and the linear algebra of NumPy compute in one thread, as the workers share the cores."""
    # NumPy's library, mostly OpenBLAS, has a thread for each core in each worker. Only threadpoolctl can change that
    # once it is loaded.
    if sys.modules.get("torch") is not None:  # None where the program wants it not to be imported
        sys.modules["torch"].set_num_threads(1)
    is_set = any(os.environ.get(name) for name in _VARIABLES)
    if "numpy" in sys.modules and not is_set and importlib.util.find_spec("threadpoolctl") is not None:
        import threadpoolctl

        threadpoolctl.threadpool_limits(1, user_api="blas")
