"""Operations of processes on other nodes with this node's objects.

A guest is such a process. It has a slot in the arena like the node's own processes, so that objects it is attached to
stay alive, and what it holds is freed when it has ended. An operation that must wait is parked: it needs no thread, and
is retried when the object changes. Operations that wait for the same thing are served in the order of arrival.
"""

from __future__ import annotations

import asyncio
import os
import queue
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dragon import _core
from dragon.infrastructure.messages import Name
from dragon.runtime import handle as handles
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.agents import MakeFor
from dragon.runtime.protocol.objects import Operation

__all__ = ["Guests"]

log = runtime_log("objects")

_KINDS: dict[str, type[Any]] = {
    kind: getattr(handles, kind) for kind in ("Channel", "Lock", "Semaphore", "Event", "Condition", "Words")
}
_IMMEDIATE = {
    "Channel": {"_size", "_capacity", "_full", "_task_done", "_put_back", "_destroy"},
    "Lock": {"release", "_is_mine", "_count", "_recursive", "_owner_pid", "_destroy"},
    "Semaphore": {"release", "_value", "_destroy"},
    "Event": {"set", "clear", "is_set", "_destroy"},
    "Condition": {"_enter", "_leave", "_notify", "_destroy"},
    "Words": {"__len__", "__getitem__", "__setitem__", "add", "swap_if", "read", "write", "_destroy"},
}
_WAITING = {
    "Channel": {"put", "put_with_memory", "get", "_wait_readable", "_wait_writable", "_join"},
    "Lock": {"acquire"},
    "Semaphore": {"acquire"},
    "Event": {"wait"},
    "Condition": {"_sleep"},
    "Words": {"wait"},
}
# Waits that the agent does for a process of this node: none that takes a message, which could be lost on cancellation.
_WAITING_HERE = {kind: methods - {"put", "put_with_memory", "get"} for kind, methods in _WAITING.items()}
# Operations that consume something, and so must be served in order.
_IN_TURN = {"Channel.put", "Channel.put_with_memory", "Channel.get", "Lock.acquire", "Semaphore.acquire"}
_RECHECK_S = 1.0  # seconds; the longest delay after a notification that was lost with a killed process
_LOCK_RETRY_S = 0.02  # seconds between two attempts if a process holds a lock
_LOCKED_TIMEOUT_S = 1.0  # seconds for which non-waiting operations are retried then, as for local processes

GuestId = tuple[int, int]  # node, process id
Respond = Callable[..., None]


@dataclass
class _Place:
    """A guest's slot in the arena, and its parked operations."""

    slot: int
    parked: set[_Parked] = field(default_factory=set)


@dataclass(eq=False)
class _Parked:
    """An operation that waits."""

    place: _Place
    offset: int
    what: str
    since: float
    attempt: Callable[[], tuple[bool, Any, Any]]
    respond: Respond
    handle: Any
    once: bool  # it does not wait for a change: it was only delayed by a process that held a lock
    timer: asyncio.TimerHandle | None = None


class Guests:
    """All guests of this node."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._places: dict[GuestId, _Place] = {}
        self._parked: dict[int, list[_Parked]] = defaultdict(list)
        self._handles: dict[int, dict[tuple[str, int], Any]] = {}  # by offset
        self._locked: set[int] = set()  # offsets of objects that are retried soon, as a process held their lock
        self._me = _core.myself()
        self._look_again()

    # ---- guests

    def _place(self, guest: GuestId) -> _Place:
        place = self._places.get(guest)
        if place is None:
            slot = _core.reserve_slot()
            _core.fill_slot(slot, os.getpid())
            place = self._places[guest] = _Place(slot)
        return place

    def left(self, guest: GuestId) -> None:
        """Free what a guest held that has ended."""
        place = self._places.pop(guest, None)
        if place is None:
            return
        for parked in list(place.parked):
            self._unpark(parked)
        _core.guest_left(place.slot)
        self._forget_handles()
        self.try_all()

    def node_left(self, node: int) -> None:
        """Free what all guests of a lost node held."""
        for guest in [guest for guest in self._places if guest[0] == node]:
            self.left(guest)

    def _forget_handles(self) -> None:
        waited_for = {parked.offset for several in self._parked.values() for parked in several}
        for offset in self._handles.keys() - waited_for:
            self._close_handles(offset)

    def _close_handles(self, offset: int) -> None:
        for handle in self._handles.pop(offset, {}).values():
            handle._close()

    # ---- operations

    def serve(self, guest: GuestId, operation: Operation, payload: Any, respond: Respond) -> Callable[[], None] | None:
        """Execute an operation of a guest: respond at once, or later; then return a function that cancels it."""
        place = self._place(guest)
        name, kind, method = operation.name, operation.kind, operation.method
        if method in _WAITING.get(kind, ()):
            try:
                handle = self._handle(kind, name)
            except _core.LockedError:
                return self._begin_later(guest, operation, payload, respond)
            return self._begin(handle, place, operation, payload, respond)

        def do() -> Any:
            if method == "_attach":
                return _core.guest_attach(place.slot, *name)
            if method == "_send":
                return _core.guest_send(place.slot, *name)
            if method == "_release":
                return self._release(place, name)
            if method in _IMMEDIATE.get(kind, ()):
                return self._at_once(self._handle(kind, name), place, operation, payload)
            raise ValueError(f"a {kind} has no operation {method!r}")

        self._do(guest, place, do, respond)
        self.try_those_at(name[0])
        return None

    def wait_here(self, slot: int, operation: Operation, respond: Respond) -> Callable[[], None]:
        """Wait for an object as a process of this node, which has that slot, and respond when it is done. Returns a
        function that cancels the wait."""
        name, kind, method = operation.name, operation.kind, operation.method
        if method not in _WAITING_HERE.get(kind, ()):
            raise ValueError(f"the agent does not wait for {kind}.{method}")
        place = _Place(slot)
        stop: Callable[[], None] | None = None

        def drop_unused() -> None:  # the agent's own handle would keep the object alive
            if not self._parked.get(name[0]):
                self._close_handles(name[0])

        def answer(value: Any, data: Any = b"", error: Exception | None = None, undo: object = None) -> None:
            respond(value, data, error)
            drop_unused()

        def begin() -> None:
            nonlocal stop
            try:
                stop = self._begin(self._handle(kind, name), place, operation, b"", answer)
            except _core.LockedError:
                stop = self._loop.call_later(_LOCK_RETRY_S, begin).cancel
            except Exception as error:
                answer(None, b"", error)

        def cancel() -> None:
            if stop is not None:
                stop()
            drop_unused()

        begin()
        return cancel

    def _begin_later(self, guest: GuestId, operation: Operation, payload: Any, respond: Respond) -> Callable[[], None]:
        """Begin an operation once the agent can attach to the object, which a stopped process prevents."""
        timeout = operation.timeout
        until = None if timeout is None else self._loop.time() + (timeout or _LOCKED_TIMEOUT_S)

        cancel: Callable[[], None]

        def look() -> None:
            nonlocal cancel
            place = self._places.get(guest)
            if place is None:
                return  # it has ended
            try:
                handle = self._handle(operation.kind, operation.name)
                cancel = self._begin(handle, place, operation, payload, respond) or cancel
            except _core.LockedError:
                if until is not None and self._loop.time() >= until:
                    respond((False, None))
                else:
                    cancel = self._loop.call_later(_LOCK_RETRY_S, look).cancel
            except Exception as error:
                respond(None, b"", error)

        def stop() -> None:
            cancel()

        cancel = self._loop.call_later(_LOCK_RETRY_S, look).cancel
        return stop

    def _do(self, guest: GuestId, place: _Place, do: Callable[[], Any], respond: Respond) -> None:
        """Execute `do` once no stopped process holds a lock that it needs. Raises what it raises in the first
        attempt."""
        try:
            value = do()
        except _core.LockedError:
            self._loop.call_later(_LOCK_RETRY_S, self._do_later, guest, place, do, respond)
        else:
            respond((True, value))

    def _do_later(self, guest: GuestId, place: _Place, do: Callable[[], Any], respond: Respond) -> None:
        if self._places.get(guest) is not place:
            return  # it has ended
        try:
            self._do(guest, place, do, respond)
        except Exception as error:
            respond(None, b"", error)
        self.try_all()

    def make(self, node: int, wanted: MakeFor) -> Name:
        """Create an object, which stays alive until a process of that node has attached to it."""
        if wanted.kind not in _KINDS:
            raise ValueError(f"an agent cannot create a {wanted.kind!r}")
        made = _KINDS[wanted.kind](*wanted.given, **wanted.options)
        made._made_at(wanted.made_at)
        self.announce(node, made._name(), 1)
        name: Name = made._name()
        return name

    def announce(self, node: int, name: Name, count: int) -> None:
        """Keep an object alive until `count` processes that another node is about to start have attached to it."""
        # For process 0 of the node: references that are never taken are dropped with the node.
        for _ in range(count):
            _core.guest_send(self._place((node, 0)).slot, *name)

    def release(self, guest: GuestId, name: Name) -> None:
        """Release a handle that a guest has dropped."""
        place = self._places.get(guest)
        if place is not None:
            self._do(guest, place, lambda: self._release(place, name), lambda *done: None)

    def _release(self, place: _Place, name: Name) -> None:
        _core.guest_release(place.slot, *name)
        # The agent's own handle would keep the object alive.
        if not self._parked.get(name[0]):
            self._close_handles(name[0])

    def _handle(self, kind: str, name: Name) -> Any:
        known = self._handles.setdefault(name[0], {})
        found = known.get((kind, name[1]))
        if found is None:
            # Not as one end of a pipe: the agent is neither its reader nor its writer.
            found = known[kind, name[1]] = _KINDS[kind]._attached((name[0], name[1], name[2] & ~0xFF))
        return found

    def _at_once(self, handle: Any, place: _Place, operation: Operation, payload: Any) -> Any:
        method, given = operation.method, operation.given
        if method == "read":
            return bytes(memoryview(handle).cast("B")[given[0] : given[0] + given[1]])
        if method == "write":
            memory, data = memoryview(handle).cast("B"), memoryview(payload)
            for start, size in zip(*given, strict=True):
                memory[start : start + size], data = data[:size], data[size:]
            handle.add(0, 0)  # wakes processes that wait for a word
            return None
        if method == "_put_back":
            return handle._put_back(*given, payload)
        with _Acting(place.slot, operation.thread, self._me):
            return getattr(handle, method)(*given)

    def _begin(
        self, handle: Any, place: _Place, operation: Operation, payload: Any, respond: Respond
    ) -> Callable[[], None] | None:
        attempt = self._attempt(handle, place, operation, payload)
        if operation.method == "acquire" or (operation.method == "get" and operation.doing is None):
            respond = self._undoable(place, operation, respond)
        timeout, offset = operation.timeout, operation.name[0]
        what = f"{operation.kind}.{operation.method}"
        once = timeout == 0
        if once or not self._is_behind_others(offset, what, handle, place, operation.thread):
            try:
                done, value, data = attempt()
            except _core.LockedError:
                if once:
                    timeout = _LOCKED_TIMEOUT_S
            else:
                if done or once:
                    respond((done, value), data)
                    return None
        parked = _Parked(place, offset, what, self._loop.time(), attempt, respond, handle, once)
        handle._watch(True)
        place.parked.add(parked)
        self._parked[parked.offset].append(parked)
        if timeout is not None:
            parked.timer = self._loop.call_later(timeout, self._time_out, parked)
        # It may have changed before it was watched.
        self.try_those_at(offset)
        return lambda: self._unpark(parked)

    def _undoable(self, place: _Place, operation: Operation, respond: Respond) -> Respond:
        """Let `respond` know how to undo an operation: no message is lost, and no lock stays acquired, by an answer
        that does not arrive."""

        def undo(kind: int, data: Any) -> None:
            try:
                handle = self._handle(operation.kind, operation.name)
                if operation.method == "get":
                    handle._put_back(kind, memoryview(data))
                elif operation.kind != "Lock":
                    handle.release()
                elif place in self._places.values():  # else its end has released the lock: another may hold it now
                    with _Acting(place.slot, operation.thread, self._me):
                        handle.release()
            except _core.LockedError:
                self._loop.call_later(_LOCK_RETRY_S, undo, kind, data)
            except _core.DestroyedError:
                return  # nobody can use it any more
            except MemoryError as error:
                log.warning("a message whose receiver lost its connection is lost: %s", error)
            self.try_those_at(operation.name[0])

        def answer(value: Any, data: Any = b"", error: Exception | None = None) -> None:
            done = error is None and value[0]
            respond(value, data, error, (lambda: undo(value[1], data)) if done else None)

        return answer

    def _is_behind_others(self, offset: int, what: str, handle: Any, place: _Place, thread: int) -> bool:
        """Return whether others wait for the same thing. A guest that already holds a recursive lock does not wait
        behind them."""
        if what not in _IN_TURN or all(parked.what != what for parked in self._parked.get(offset, ())):
            return False
        if what != "Lock.acquire" or not handle._recursive():
            return True
        with _Acting(place.slot, thread, self._me):
            return not handle._is_mine()

    def _attempt(
        self, handle: Any, place: _Place, operation: Operation, payload: Any
    ) -> Callable[[], tuple[bool, Any, Any]]:
        method, given, thread = operation.method, operation.given, operation.thread
        doing, index = operation.doing, operation.index
        if doing is not None:
            self._handle("Words", doing)[index] = 0

        def put() -> tuple[bool, Any, Any]:
            try:
                handle._put_parts(given[0], payload, 0, operation.ticket)
            except queue.Full:
                return False, None, b""
            return True, None, b""

        def put_with_memory() -> tuple[bool, Any, Any]:
            try:
                return put()
            except MemoryError:
                return False, None, b""

        def get() -> tuple[bool, Any, Any]:
            try:
                if doing is None:
                    kind, data = handle._get_parts(0)
                else:
                    kind, data = handle._get_task_parts(self._handle("Words", doing), index)
            except queue.Empty:
                return False, None, b""
            return True, kind, data

        def writable() -> tuple[bool, Any, Any]:
            return not handle._full(), None, b""

        def acquire() -> tuple[bool, Any, Any]:
            # The warning about a holder that died is sent to the guest, which issues it.
            with _Acting(place.slot, thread, self._me), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                return handle.acquire(False), [str(each.message) for each in caught], b""

        def other() -> tuple[bool, Any, Any]:
            return getattr(handle, method)(*given, 0), None, b""

        chosen = {
            "put": put,
            "put_with_memory": put_with_memory,
            "get": get,
            "acquire": acquire,
            "_wait_writable": writable,
        }
        return chosen.get(method, other)

    # ---- waiting

    def waiting(self) -> Iterator[tuple[GuestId, str, int, float, int]]:
        """Yield every parked operation: its guest, its name, the offset of its object, since when by the loop's clock,
        and the process id of a lock's holder, otherwise 0."""
        for guest, place in self._places.items():
            for parked in place.parked:
                holder = parked.handle._owner_pid() if parked.what == "Lock.acquire" else 0
                yield guest, parked.what, parked.offset, parked.since, holder

    def _look_again(self) -> None:
        self.try_all()
        self._loop.call_later(_RECHECK_S, self._look_again)

    def try_all(self) -> None:
        """Retry all parked operations."""
        for offset in list(self._parked):
            self.try_those_at(offset)

    def try_those_at(self, offset: int) -> None:
        """Retry the parked operations of an object that has changed, in the order of arrival; those of the same kind
        after one that must wait are not tried."""
        stuck = set()
        for parked in list(self._parked.get(offset, ())):
            if parked.what not in stuck and not self._try(parked) and parked.what in _IN_TURN:
                stuck.add(parked.what)

    def _try(self, parked: _Parked) -> bool:
        """Retry a parked operation. Returns whether it no longer waits."""
        if parked not in parked.place.parked:
            return True
        try:
            done, value, data = parked.attempt()
        except _core.LockedError:
            if parked.offset not in self._locked:
                self._locked.add(parked.offset)
                self._loop.call_later(_LOCK_RETRY_S, self._try_locked, parked.offset)
            return False
        except Exception as error:
            self._unpark(parked)
            parked.respond(None, b"", error)
            return True
        if done or parked.once:
            self._unpark(parked)
            parked.respond((done, value), data)
        return bool(done)

    def _try_locked(self, offset: int) -> None:
        self._locked.discard(offset)
        self.try_those_at(offset)

    def _time_out(self, parked: _Parked) -> None:
        if parked in parked.place.parked:
            self._unpark(parked)
            parked.respond((False, None))

    def _unpark(self, parked: _Parked) -> None:
        if parked not in parked.place.parked:
            return
        parked.place.parked.discard(parked)
        several = self._parked[parked.offset]
        several.remove(parked)
        if not several:
            del self._parked[parked.offset]
        if parked.timer is not None:
            parked.timer.cancel()
        try:
            parked.handle._watch(False)
        except _core.DestroyedError:
            return  # it needs no watching any more


class _Acting:
    """Within the block the agent acts as a guest: locks are acquired for the guest, not the agent."""

    def __init__(self, slot: int, thread: int, me: int) -> None:
        self._slot, self._thread, self._me = slot, thread, me

    def __enter__(self) -> None:
        _core.act_as(self._slot, self._thread)

    def __exit__(self, *exc_info: object) -> None:
        _core.act_as(self._me, 0)
