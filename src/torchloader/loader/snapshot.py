"""The dataset as it was when an epoch began, for every worker that helps with it, whenever that worker starts."""

from __future__ import annotations

from typing import Any

from dragon.serialization import UNSENDABLE, Snapshot, explained

__all__ = ["Snapshots", "Unkept"]

_ADVICE = (
    "A dataset is pickled for its workers: have it open files, connections and the like there, at the first "
    "__getitem__() or in worker_init_fn, not in __init__()"
)


class Unkept:
    """An object as it is whenever it is sent: what it is pickled to can be read only once."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def same_as(self, other: Snapshot | Unkept) -> bool:
        """Nobody can say."""
        return self is other

    def __reduce__(self) -> Any:
        return _as_it_is, (self._value,)


def _as_it_is(value: Any) -> Any:
    return value


class Snapshots:
    """Those that iterations need, by numbers: an object that has not changed since has the number that it had."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._repeatable: bool | None = None
        self._kept: dict[int, Snapshot | Unkept] = {}
        self._latest = -1
        self._needed: dict[int, int | None] = {}

    def take(self) -> Snapshot | Unkept:
        """The object as it is. It may take a while, and raises what pickling raises."""
        if self._repeatable is False:
            return Unkept(self._value)
        try:
            snapshot = Snapshot(self._value)
        except UNSENDABLE as error:
            raise self._advised(error) from None
        if self._repeatable is None:
            # Tensors in shared memory and open connections are pickled as something that is fetched once.
            self._repeatable = snapshot.same_as(Snapshot(self._value))
            if not self._repeatable:
                return Unkept(self._value)
        return snapshot

    def _advised(self, error: Exception) -> Exception:
        """The error with the part that cannot be sent, as the user calls it."""
        told = explained(error, vars(self._value))
        return type(told)(f"{told}. {_ADVICE}")

    def begin(self, iteration: int, snapshot: Snapshot | Unkept | None) -> None:
        """An iteration needs this one; None: that of the first worker that starts."""
        self._needed[iteration] = None
        if snapshot is not None:
            self.keep(snapshot)

    @property
    def lacking(self) -> bool:
        """Whether one must be taken before a worker starts."""
        return self._latest < 0 or None in self._needed.values()

    def keep(self, snapshot: Snapshot | Unkept) -> None:
        """This is the one for all iterations that have none yet."""
        if self._latest < 0 or not snapshot.same_as(self._kept[self._latest]):
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
            del self._kept[number]

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

    def __getitem__(self, number: int) -> Snapshot | Unkept:
        return self._kept[number]
