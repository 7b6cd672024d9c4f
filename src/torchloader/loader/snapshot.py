"""The dataset as it was when an epoch began, for all workers of that epoch, whenever they start."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty

from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.policy import Policy
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.serialization import UNSENDABLE, NodeSnapshot, OnNode, Snapshot, explained, snapshot_on_node
from torchloader.loader import options
from torchloader.loader.forks import Template
from torchloader.loader.making import Maker
from torchloader.loader.options import WorkerPolicy

_LOOK_AFTER_HOLDER_S = 0.5  # seconds


class _Holder:
    """The process on a node whose memory the copies are. Raises OSError and NodeLostError if it cannot be started."""

    def __init__(self, node: str) -> None:
        self.orders, self._replies = Queue(0), Queue(0)
        self._copies: dict[int, OnNode | None] = {}
        place = Policy(placement=Policy.Placement.HOST_NAME, host_name=node)
        self.process = Process(_hold, (self.orders, self._replies), policy=place, _kind="dataset")
        self.process.start()

    def copy(self, number: int, snapshot: NodeSnapshot, needed: set[int]) -> OnNode | None:
        """Return the copy of a snapshot, None if the node has no memory for it."""
        if number not in self._copies:
            parts = [pickle.PickleBuffer(part) for part in snapshot.parts()]
            self.orders.put((number, needed, parts))
            self._copies = {kept: copy for kept, copy in self._copies.items() if kept in needed}
            self._copies[number] = self._reply(number)
        return self._copies[number]

    def _reply(self, number: int) -> OnNode | None:
        while True:
            try:
                of, copy = self._replies.get(timeout=_LOOK_AFTER_HOLDER_S)
                if of == number:  # else Ctrl-C has interrupted who waited for it
                    return copy  # type: ignore[no-any-return]
            except Empty:
                if not self.process.is_alive:
                    raise ChildProcessError("the holder of a node's copies has ended") from None


def _hold(orders: Queue, replies: Queue) -> None:
    """Keep copies, until None comes. The run ends this process with its trainer."""
    copies: dict[int, NodeSnapshot] = {}
    order: tuple[int, set[int], Sequence[bytes | bytearray | memoryview]] | None
    while (order := orders.get()) is not None:
        number, needed, parts = order
        copies = {kept: copy for kept, copy in copies.items() if kept in needed}
        with suppress(OSError):
            copies[number] = NodeSnapshot([memoryview(part) for part in parts])
        replies.put((number, copies.get(number)))
        del order, parts


_ADVICE = (
    "A dataset is pickled for its workers: have it open files, connections and the like there, at the first "
    "{first} or in worker_init_fn, not in __init__(){otherwise}"
)
_OTHERWISE = '; or have the workers forked, with multiprocessing_context="fork"'


class Inherited:
    """A snapshot for workers that are forked from a template: the maker that the template has, of which nothing is
    pickled, or a `copy`, which is."""

    def __init__(self, template: Template, seed: int, copy: Snapshot | NodeSnapshot | Maker | None = None) -> None:
        self.template, self.seed, self.copy = template, seed, copy

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return (_inherited, ()) if self.copy is None else (_as_it_is, (self.copy,))


def _as_it_is(value: object) -> object:
    return value


def _inherited() -> object:
    return options.inherited


# A maker itself is pickled anew each time it is sent, as its pickle can be read only once.
AnySnapshot = Snapshot | NodeSnapshot | Maker | Inherited


def received(content: OnNode | Maker) -> Maker:
    """Return the maker from the content that was sent. Raises SnapshotGoneError if it is no longer needed."""
    maker: Maker = content.load() if isinstance(content, OnNode) else content
    maker.origin = content if isinstance(content, OnNode) else None
    return maker


class Snapshots:
    """The snapshots that iterations need, by number. An unchanged object keeps its number."""

    def __init__(self, value: Maker, policy: WorkerPolicy) -> None:
        self._value, self._policy = value, policy
        self._copied = not value.is_map_style  # forked workers need the pickled object as well, to make copies of it
        self._repeatable: bool | None = None
        self._kept: dict[int, AnySnapshot] = {}
        self.latest = -1  # the number of the latest snapshot
        self._needed: dict[int, int | None] = {}
        self._lock = threading.Lock()
        self._holders: dict[str, _Holder] = {}

    def take(self) -> AnySnapshot:
        """Return a snapshot of the object as it is now. May take long, and raises what pickling raises. Where workers
        are forked, the template is, so no thread of the loader may call this: others could be amid any operation."""
        self._policy.fix()
        latest, value = self._kept.get(self.latest), self._value
        if not self._policy.forks:
            return self._copy(latest)
        stays = isinstance(latest, Inherited) and self._policy.stays and latest.template.is_alive
        before = latest if isinstance(latest, Inherited) and stays else None
        if not self._copied:
            return before if before and before.seed == value.seed else Inherited(Template(value), value.seed)
        template = before.template if before else Template(None)
        pickled = self._copy(before.copy if before else None)
        return before if before and pickled is before.copy else Inherited(template, value.seed, pickled)

    def _copy(self, latest: AnySnapshot | None) -> Snapshot | NodeSnapshot | Maker:
        """Return a pickled copy of the object; the latest one if nothing has changed."""
        if self._repeatable is False:
            return copy.copy(self._value)
        try:
            if isinstance(latest, Snapshot | NodeSnapshot) and latest.is_of(self._value):
                return latest
            snapshot = snapshot_on_node(self._value)
            if self._repeatable is None:
                # Tensors in shared memory and open connections are pickled as something that is fetched once.
                self._repeatable = snapshot.is_of(self._value)
        except UNSENDABLE as error:
            named = explained(error, vars(self._value))
            first, otherwise = ("__iter__()", "") if self._copied else ("__getitem__()", _OTHERWISE)
            raise type(named)(f"{named}. {_ADVICE.format(first=first, otherwise=otherwise)}") from None
        return snapshot if self._repeatable else copy.copy(self._value)

    def template_of(self, number: int) -> Template | None:
        """Return the template for a worker that starts with this snapshot; None for a new process."""
        kept = self._kept[number]
        return kept.template if isinstance(kept, Inherited) else None

    def close(self) -> None:
        """End all templates, and free the copies on other nodes. Processes that have loaded one keep its memory."""
        self._drop(list(self._kept))
        with self._lock:
            for holder in self._holders.values():
                holder.orders.put(None)
            self._holders.clear()

    def leave_templates(self) -> None:
        """End the templates of finished iterations, if no iteration is left."""
        if not self._needed:
            self._drop([number for number, kept in self._kept.items() if isinstance(kept, Inherited)])

    def begin(self, iteration: int, snapshot: AnySnapshot | None) -> None:
        """Register an iteration with its snapshot; None to use the one of the first worker that starts. Workers that
        were forked from an earlier template, or wait for that, must be leaving."""
        self._needed[iteration] = None
        if snapshot is not None:
            self.keep(snapshot)

    def is_foreign(self, snapshot: AnySnapshot | None) -> bool:
        """Return whether the present workers cannot use the snapshot, as they were not forked from its template."""
        latest = self._kept.get(self.latest)
        before = latest.template if isinstance(latest, Inherited) else None
        return isinstance(snapshot, Inherited) and snapshot.template is not before

    @property
    def lacking(self) -> bool:
        """Whether a snapshot must be taken before a worker starts."""
        return self.latest < 0 or None in self._needed.values()

    def keep(self, snapshot: AnySnapshot) -> None:
        """Use this snapshot for all iterations that have none yet."""
        latest = self._kept.get(self.latest)
        is_same = isinstance(snapshot, Snapshot | NodeSnapshot) and snapshot.same_as(latest)
        if snapshot is not latest and not is_same:
            self.latest += 1
            self._kept[self.latest] = snapshot
        for iteration, number in self._needed.items():
            if number is None:
                self._needed[iteration] = self.latest
        self._drop(self._kept.keys() - self.numbers)

    def finish(self, iteration: int) -> None:
        self._needed.pop(iteration, None)
        self._drop(self._kept.keys() - self.numbers)

    def _drop(self, numbers: Iterable[int]) -> None:
        dropped = [kept for number in numbers if isinstance(kept := self._kept.pop(number), Inherited)]
        used = [kept.template for kept in self._kept.values() if isinstance(kept, Inherited)]
        for each in dropped:
            if each.template not in used:
                each.template.end()

    @property
    def numbers(self) -> set[int]:
        """The numbers of the snapshots that are needed, including the latest, which the next worker gets."""
        return {self.latest, *(number for number in self._needed.values() if number is not None)}

    def number_for(self, iteration: int) -> int:
        number = self._needed[iteration]
        assert number is not None  # workers take batches after their start
        return number

    def __getitem__(self, number: int) -> AnySnapshot:
        return self._kept[number]

    def content(self, number: int, kept: AnySnapshot, needed: set[int], node: str | None) -> AnySnapshot | OnNode:
        """Return what a worker on a node, or on this one (None), is sent of a snapshot, after the node has got its copy
        if it has none. May take long. Any thread may call this, without a lock."""
        if node is None or not isinstance(kept, NodeSnapshot):
            return kept
        on_node = None  # if the holder ends twice or has no memory for it, the worker is sent a copy of its own
        with self._lock:
            for _ in range(2):
                try:
                    holder = self._holders.get(node)
                    if holder is None or not holder.process.is_alive:
                        holder = self._holders[node] = _Holder(node)
                    on_node = holder.copy(number, kept, needed)
                    break
                except ChildProcessError:  # it was killed, which is known only now
                    continue
                except (NodeLostError, OSError):  # to start a worker there says what is wrong
                    break
        return on_node or kept.for_other_nodes()
