"""Check a history against the promises of docs/dictionary.md and docs/queues_and_pools.md.

The first word of an object's name is its kind. Objects are checked one by one:

- register, pair: linearizable. The two keys of a pair, which one put_many writes, are one register; a get_many is two
  reads of it.
- counter: linearizable.
- set: a read sees everything that was added before it began, and nothing that was never added.
- bank: the sum of its accounts is the same for every reader that holds its lock. So the next holder of the lock sees
  exactly what was written under it, even if the previous holder was killed in the middle.
- queue: no message is taken twice or invented. Messages are taken in the order in which they were put, as far as that
  order is known. A message that was put stays until it is taken. For each take with an unknown outcome one message may
  be missing, or may have come back to the front after later ones were taken. More may only be missing if the queue's
  node is lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from jepsen.history import FINAL, Operation
from jepsen.linear import COUNTER, REGISTER, Model, Verdict, explained, is_linearizable
from jepsen.sessions import going_back

__all__ = ["Fault", "check", "reads_that_go_back", "stale_reads", "without_reads"]

_SHOWN = 12
_MODELS = {"register": REGISTER, "pair": REGISTER, "counter": COUNTER}


@dataclass(frozen=True)
class Fault:
    """A violation of an object's promise, and the operations that show it. `sure` is False if the search was given
    up.
    """

    object: str
    what: str
    operations: Sequence[Operation] = ()
    sure: bool = True

    def __str__(self) -> str:
        shown = self.operations[-_SHOWN:]
        lines = [f"{self.object}: {self.what}", *(f"    {operation}" for operation in shown)]
        if len(shown) < len(self.operations):
            lines.insert(1, f"    (and {len(self.operations) - len(shown)} operations before these)")
        return "\n".join(lines)


def check(operations: Iterable[Operation], lost: Collection[str] = ()) -> list[Fault]:
    """Return all violations. `lost` are the hosts that may have been declared lost: their queues may no longer
    exist.
    """
    found = []
    for name, those in sorted(_by_object(operations).items()):
        found += [Fault(name, "raised what it should not", [one]) for one in those if one.broken]
        kind, _, which = name.partition(" ")
        if kind in _MODELS:
            found += _check_model(name, _MODELS[kind], _single(those))
        elif kind == "set":
            found += _check_set(name, those)
        elif kind == "bank":
            found += _check_bank(name, those)
        elif kind == "queue":
            found += _check_queue(name, those, which in lost)
        else:
            raise ValueError(f"what is a {kind}?")
    return found


def stale_reads(operations: Iterable[Operation]) -> list[Fault]:
    """Return the violations of registers and counters that vanish without their reads: only the reads are wrong."""
    found = []
    for name, those in sorted(_by_object(operations).items()):
        model = _MODELS.get(name.partition(" ")[0])
        if model is not None and not _check_model(name, model, _writes(those)):
            found += _check_model(name, model, _single(those))
    return found


def reads_that_go_back(operations: Iterable[Operation], lost: Collection[str] = ()) -> list[Fault]:
    """Return reads that are older than what their process put or read before. Reads may lag behind puts of other
    processes.
    """
    found = []
    for name, those in sorted(_by_object(operations).items()):
        model = _MODELS.get(name.partition(" ")[0])
        if model is not None:
            pairs = going_back(_single(those), model is COUNTER, own_only=bool(lost))
            found += [Fault(name, "a process read what is older than what it knew", pair) for pair in pairs]
    return found


def without_reads(operations: Iterable[Operation]) -> list[Operation]:
    """Leave out the reads of registers and counters, which a dictionary with stale reads does not promise."""
    found = []
    for name, those in _by_object(operations).items():
        found += _writes(those) if name.partition(" ")[0] in _MODELS else those
    return found


def _by_object(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
    found = defaultdict(list)
    for operation in operations:
        found[operation.object].append(operation)
    return found


def _writes(operations: Iterable[Operation]) -> list[Operation]:
    """Leave out operations that only read, such as a setdefault that finds a value."""
    return [one for one in operations if one.name not in ("get", "get_many") and not _found(one)]


def _found(operation: Operation) -> bool:
    return operation.name == "setdefault" and operation.ended is not None and operation.result != operation.given


# ---- registers and counters


def _single(operations: Iterable[Operation]) -> list[Operation]:
    """Split each get_many into several reads."""
    found = []
    for one in operations:
        if one.name != "get_many":
            found.append(one)
        elif one.ended is not None:
            found += [replace(one, name="get", result=value) for value in one.result]
    return found


def _check_model(name: str, model: Model, operations: Sequence[Operation]) -> list[Fault]:
    verdict = is_linearizable(model, operations)
    if verdict is Verdict.YES:
        return []
    if verdict is Verdict.OPEN:
        return [Fault(name, verdict.value, sure=False)]
    return [Fault(name, "these cannot have happened one after the other", explained(model, operations))]


# ---- sets


def _check_set(name: str, operations: Sequence[Operation]) -> list[Fault]:
    found = []
    adds = {one.given: one for one in operations if one.name == "add"}
    looks = [one for one in operations if one.name == "elements" and one.ended is not None]
    if not any(look.client == FINAL for look in looks):
        found.append(Fault(name, "it could not be read at the end", operations[-1:]))
    for look in looks:
        assert look.ended is not None
        seen = set(look.result)
        missing = [one for one in adds.values() if one.ended is not None and one.ended < look.begun]
        missing = [one for one in missing if one.given not in seen]
        if missing:
            found.append(Fault(name, f"{len(missing)} elements that were added are missing", [*missing, _brief(look)]))
        invented = [one for one in seen if one not in adds or adds[one].begun > look.ended]
        if invented:
            found.append(Fault(name, f"nobody had added {invented[:3]}", [_brief(look)]))
    return found


def _brief(look: Operation) -> Operation:
    return replace(look, result=f"{len(look.result)} elements")


# ---- banks


def _check_bank(name: str, operations: Sequence[Operation]) -> list[Fault]:
    known = [one for one in operations if one.ended is not None]
    sums = Counter(sum(one.result) for one in known)
    if len(sums) < 2:
        return []
    changes = [(before, after) for before, after in pairwise(known) if sum(before.result) != sum(after.result)]
    between = [one for one in operations if changes[0][0].begun <= one.begun <= changes[0][1].begun]
    return [Fault(name, f"it had {', '.join(map(str, sorted(sums)))} in all", between)]


# ---- queues


def _check_queue(name: str, operations: Sequence[Operation], may_be_gone: bool) -> list[Fault]:
    found = []
    puts = {one.given: one for one in operations if one.name == "put" and (one.ended is None or one.result)}
    takes = [one for one in operations if one.name == "take" and one.ended is not None and one.result is not None]
    unknown = [one for one in operations if one.name == "take" and one.ended is None]
    often = Counter(one.result for one in takes)
    for message in [message for message, times in often.items() if times > 1]:
        found.append(Fault(name, "a message was taken twice", [one for one in takes if one.result == message]))
    for one in takes:
        put = puts.get(one.result)
        if put is None or put.begun > (one.ended or 0):
            found.append(Fault(name, "a message was taken that nobody had put", [one]))
    overtaken = _overtaken(puts, takes)
    for number, (put, take, other, other_take) in enumerate(overtaken, 1):
        if sum(one.begun < (other_take.ended or 0) for one in unknown) < number:
            found.append(Fault(name, "a message overtook another one", [put, other, other_take, take]))
    emptied = [one.begun for one in operations if one.name == "drained" and one.ended is not None]
    ended = [(one.ended, message) for message, one in puts.items() if one.ended is not None]
    lost = [puts[message] for end, message in ended if emptied and end < emptied[0] and message not in often]
    if lost and len(lost) + len(overtaken) > len(unknown):
        what = f"{len(lost)} messages are lost and {len(overtaken)} came back, of only {len(unknown)} unknown takes"
        found.append(Fault(name, what, lost))
    if not emptied and not may_be_gone:
        found.append(Fault(name, "it could not be emptied at the end, and its host was not lost", operations[-1:]))
    return found


def _overtaken(
    puts: dict[str, Operation], takes: Sequence[Operation]
) -> list[tuple[Operation, Operation, Operation, Operation]]:
    """Return the put and the take of each message that was taken after a message whose put began once its own had
    returned, and the put and the take of that other one, of several the one that was taken first. The results are
    sorted by the end of the other's take.
    """
    taken = sorted(((puts[one.result], one) for one in takes if one.result in puts), key=lambda pair: pair[0].begun)
    begins = [put.begun for put, _ in taken]
    first_after = list(accumulate(reversed(taken), lambda one, other: min(one, other, key=_end_of_take)))[::-1]
    found = []
    for put, take in taken:
        later = bisect_right(begins, put.ended) if put.ended is not None else len(taken)
        if later < len(taken) and _end_of_take(first_after[later]) < take.begun:
            found.append((put, take, *first_after[later]))
    return sorted(found, key=lambda one: one[3].ended or 0)


def _end_of_take(pair: tuple[Operation, Operation]) -> int:
    assert pair[1].ended is not None
    return pair[1].ended
