"""The dataset as it was when an epoch began, for every worker that helps with it, whenever that worker starts."""

from __future__ import annotations

from typing import Any

from dragon.serialization import UNSENDABLE, NodeSnapshot, OnNode, Snapshot, explained, snapshot_on_node
from torchloader.loader.forks import Inherited, Template
from torchloader.loader.making import Maker
from torchloader.loader.policy import WorkerPolicy

__all__ = ["AnySnapshot", "Snapshots", "Unkept", "received"]

_ADVICE = (
    "A dataset is pickled for its workers: have it open files, connections and the like there, at the first "
    "{first} or in worker_init_fn, not in __init__(){otherwise}"
)
_OTHERWISE = '; or have the workers forked, with multiprocessing_context="fork"'


class Unkept:
    """An object as it is whenever it is sent: what it is pickled to can be read only once."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def same_as(self, other: AnySnapshot) -> bool:
        """Nobody can say."""
        return self is other

    def __reduce__(self) -> Any:
        return _as_it_is, (self._value,)


def _as_it_is(value: Any) -> Any:
    return value


AnySnapshot = Snapshot | NodeSnapshot | Unkept | Inherited


def received(content: Any) -> Maker:
    """The maker in what was sent of one of them. Raises SnapshotGoneError where nobody needs it any more."""
    maker: Maker = content.load() if isinstance(content, OnNode) else content
    maker.origin = content if isinstance(content, OnNode) else None
    return maker


def _end(template: Template | None) -> None:
    """Have a template end once it has no workers. That it is dropped is not enough: an error that the program keeps, or
    what only the garbage collector finds, may refer to it."""
    if template is not None:
        template.end()


class Snapshots:
    """Those that iterations need, by numbers: an object that has not changed since has the number that it had."""

    def __init__(self, value: Any, policy: WorkerPolicy, copied: bool) -> None:
        """`copied`: forked workers need the object pickled as well, to make copies of it as it was."""
        self._value, self._policy, self._copied = value, policy, copied
        self._template: Template | None = None  # what workers are forked from that get the object pickled
        self._repeatable: bool | None = None
        self._kept: dict[int, AnySnapshot] = {}
        self._latest = -1
        self._needed: dict[int, int | None] = {}

    def take(self) -> AnySnapshot:
        """The object as it is. It may take a while, and raises what pickling raises. Where workers are forked they are
        from this moment on, so that no thread of the loader's calls this: others would be in the middle of anything."""
        self._policy.fix()
        latest = self._kept.get(self._latest)
        if self._policy.forks and not self._copied:
            if isinstance(latest, Inherited) and self._policy.stays and latest.serves(self._value):
                return latest
            return Inherited(self._value)
        if self._policy.forks and not (self._template and self._policy.stays and self._template.is_alive):
            _end(self._template)
            self._template = Template(None)
        if self._repeatable is False:
            return Unkept(self._value)
        try:
            if isinstance(latest, Snapshot | NodeSnapshot) and latest.is_of(self._value):
                return latest
            snapshot = snapshot_on_node(self._value)
            if self._repeatable is None:
                # Tensors in shared memory and open connections are pickled as something that is fetched once.
                self._repeatable = snapshot.is_of(self._value)
        except UNSENDABLE as error:
            raise self._advised(error) from None
        return snapshot if self._repeatable else Unkept(self._value)

    def _advised(self, error: Exception) -> Exception:
        """The error with the part that cannot be sent, as the user calls it."""
        told = explained(error, vars(self._value))
        first, otherwise = ("__iter__()", "") if self._copied else ("__getitem__()", _OTHERWISE)
        return type(told)(f"{told}. {_ADVICE.format(first=first, otherwise=otherwise)}")

    def template_of(self, number: int) -> Template | None:
        """What a worker that is to have this one at first is forked from; None: it is a new process."""
        kept = self._kept[number]
        return kept.template if isinstance(kept, Inherited) else self._template

    def close(self) -> None:
        """No worker starts any more."""
        for number in self._kept:
            _end(self.template_of(number))
        _end(self._template)

    def leave_templates(self) -> None:
        """No worker is started for iterations that are over: what they were forked from ends."""
        if not self._needed and self._policy.forks:
            _end(self._template)
            self._template = None
            for number in [number for number, kept in self._kept.items() if isinstance(kept, Inherited)]:
                self._drop(number)

    def begin(self, iteration: int, snapshot: AnySnapshot | None) -> None:
        """An iteration needs this one; None: that of the first worker that starts."""
        self._needed[iteration] = None
        if snapshot is not None:
            self.keep(snapshot)

    def begin_ahead(self, iteration: int) -> bool:
        """An iteration needs the one that workers have; False where there is none."""
        if self._latest not in self._kept:
            return False
        self._needed[iteration] = self._latest
        return True

    def is_foreign(self, snapshot: AnySnapshot | None) -> bool:
        """Whether workers that are there cannot have it, as they are not forked from it."""
        return isinstance(snapshot, Inherited) and snapshot is not self._kept.get(self._latest)

    @property
    def lacking(self) -> bool:
        """Whether one must be taken before a worker starts."""
        return self._latest < 0 or None in self._needed.values()

    def keep(self, snapshot: AnySnapshot) -> None:
        """This is the one for all iterations that have none yet."""
        latest = self._kept.get(self._latest)
        if latest is None or (snapshot is not latest and not snapshot.same_as(latest)):
            self._latest += 1
            self._kept[self._latest] = snapshot
        for iteration, number in self._needed.items():
            if number is None:
                self._needed[iteration] = self._latest
        self._forget()

    def finish(self, iteration: int) -> None:
        """An iteration is over."""
        self._needed.pop(iteration, None)
        self._forget()

    def _forget(self) -> None:
        for number in self._kept.keys() - self.numbers:
            self._drop(number)

    def _drop(self, number: int) -> None:
        kept = self._kept.pop(number)
        if isinstance(kept, Inherited):
            _end(kept.template)

    @property
    def numbers(self) -> set[int]:
        """Of those that are needed, or will be by the next worker."""
        return {self._latest, *(number for number in self._needed.values() if number is not None)}

    @property
    def latest(self) -> int:
        """The number of the last one."""
        return self._latest

    def number_for(self, iteration: int) -> int:
        """The number of an iteration's."""
        number = self._needed[iteration]
        assert number is not None  # workers take batches after their start
        return number

    def __getitem__(self, number: int) -> AnySnapshot:
        return self._kept[number]

    def content(self, number: int, is_here: bool) -> AnySnapshot:
        """Return what a worker is sent of one: where it is on another node, not what is in the memory of this one."""
        kept = self._kept[number]
        return kept if is_here or not isinstance(kept, NodeSnapshot) else kept.for_other_nodes()
