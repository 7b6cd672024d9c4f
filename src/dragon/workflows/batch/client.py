"""The clients of a batch: the process that made it, and every process that received it."""

from __future__ import annotations

import itertools
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dragon.infrastructure.errors import DestroyedError
from dragon.infrastructure.start_request import Name
from dragon.runtime import processes
from dragon.runtime.arguments import checked_seconds
from dragon.runtime.handle import Channel
from dragon.runtime.run import identity
from dragon.workflows.batch.call import Call
from dragon.workflows.batch.crew import NO_WORKER
from dragon.workflows.batch.errors import BatchError, SubmitAfterCloseError
from dragon.workflows.batch.order import Entry, cancellation
from dragon.workflows.batch.outcome import Failure, Key, Outcome, Promise, pack, unpack
from dragon.workflows.batch.scheduler import Scheduler

# The types of messages of other clients.
_HELLO, _SUBMIT, _WATCH, _CANCEL, _RELEASE, _DESTROY = range(NO_WORKER + 10, NO_WORKER + 16)
# The types of messages to them.
_OUTCOME, _CANCELLED, _ENDED, _NOT_DESTROYED = range(4)

_ANSWER_S = 10.0  # seconds in which the batch's process answers
_MOST_POLLED = 1_000_000  # ends of tasks that are kept for poll()


class Ended:
    """The tasks of a client that have ended, in the order of their ends, for poll()."""

    def __init__(self) -> None:
        self._keys: deque[int] = deque(maxlen=_MOST_POLLED)
        self._changed = threading.Condition()
        self._waiting = 0

    def add(self, index: int) -> None:
        self._keys.append(index)
        if self._waiting:
            with self._changed:
                self._changed.notify()

    def take(self, timeout: float | None) -> int | None:
        """Return the next one; None after `timeout` seconds."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: bool(self._keys), _waitable(timeout))
            finally:
                self._waiting -= 1
            return self._keys.popleft() if self._keys else None


class _Client:
    """Submits and cancels tasks, and keeps track of their ends."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ended = Ended()
        self.submitted = self.failed = 0
        self.is_over = False  # whether the batch has ended
        self._numbers = itertools.count()
        self._closed = False

    def next_key(self) -> Key:
        """Return the name of the next task. Raises SubmitAfterCloseError after close()."""
        if self._closed:
            raise SubmitAfterCloseError("the batch has ended and takes no more tasks")
        self.submitted += 1
        return self.number, next(self._numbers)

    def close(self) -> None:
        """Submit no more tasks."""
        self._closed = True


class OwnClient(_Client):
    """The client in the process that made the batch. It also serves the requests of other clients."""

    def __init__(self, make: Callable[..., Scheduler]) -> None:
        super().__init__(0)
        self._exported: dict[Key, Entry] = {}
        self._others: dict[int, Channel] = {}
        self._puids: dict[int, int] = {}
        self._most_puids = 16
        self.destroyed: Callable[[float | None, float | None], None] | None = None
        self._handlers: dict[int, Callable[..., None]] = {
            _HELLO: self._meet,
            _SUBMIT: self._submit_for,
            _WATCH: self._watch_for,
            _CANCEL: self._cancel_for,
            _RELEASE: self._release_for,
            _DESTROY: self._destroy_soon,
        }
        self.scheduler = make(ended=self._task_ended, told=self._told)

    def submit(self, key: Key, call: Call) -> Entry:
        """Give a task to the scheduler. Raises BatchError if an input is no longer known."""
        inputs = [self._entry(one) for one in call.inputs] if call.inputs else []
        return self.scheduler.submit(key, call, inputs)

    def _entry(self, one: Promise | Key) -> Entry:
        if isinstance(one, Entry):
            return one
        key = one.key if isinstance(one, Promise) else one
        known = self._exported.get(key)
        if known is None:
            raise BatchError(f"task {key[0]}-{key[1]} is no longer known: the process that submitted it has dropped it")
        return known

    def known(self, key: Key) -> Promise:
        """Return the entry of a task. Raises BatchError if it is no longer known."""
        return self._entry(key)

    def export(self, promise: Promise) -> None:
        """Let other processes refer to a task from now on."""
        self._exported[promise.key] = self._entry(promise)

    def cancel(self, promise: Promise, timeout: float | None) -> bool:
        """Cancel a task. Returns whether it has ended because of this within `timeout` seconds."""
        entry = self._entry(promise)
        gone = self.scheduler.cancel(entry, cancellation(entry))
        return gone is not None and gone.wait(timeout)

    def explain(self, promise: Promise) -> str:
        """Return in a sentence what a task waits for, where it runs, or how it ended."""
        return self.scheduler.explain(self._entry(promise))

    def cancel_all(self, running: bool) -> list[Promise]:
        """Cancel the tasks of this client. Returns promises that are fulfilled when their processes have ended."""
        return self.scheduler.cancel_all(0, running)

    def running(self) -> int:
        """Return how many tasks run, of all clients."""
        return self.scheduler.crew.running()

    def unfinished(self) -> list[Promise]:
        """Return the entries of this client's tasks that have no outcome yet."""
        return list(self.scheduler.unfinished(0))

    def destroy(self, timeout: float | None, force_timeout: float | None) -> None:
        """End the batch. Raises TimeoutError."""
        if self.destroyed is not None:
            self.destroyed(timeout, force_timeout)

    # ---- other clients

    def _task_ended(self, entry: Entry) -> None:
        if entry.key[0] == 0:
            self.ended.add(entry.key[1])
            self.failed += isinstance(entry.outcome, Failure)
        for client in entry.watchers:
            self._tell_outcome(client, entry.key, entry.outcome)
        entry.watchers = []

    def _tell_outcome(self, client: int, key: Key, outcome: Outcome | None) -> None:
        try:
            self._tell(client, (_OUTCOME, key, *pack(outcome)))
        except Exception as error:
            self._tell(client, (_OUTCOME, key, *pack(Failure.of(error))))

    def _tell(self, client: int, message: tuple[Any, ...]) -> None:
        try:
            if client in self._others:
                self._others[client].put(message)
        except DestroyedError:
            del self._others[client]  # it has ended

    def _told(self, message: tuple[Any, ...]) -> None:
        what, client, *rest = message
        self._handlers[what](client, *rest)

    def _release_for(self, client: int, key: Key) -> None:
        self._exported.pop(key, None)

    def _destroy_soon(self, client: int, timeout: float | None, force_timeout: float | None) -> None:
        threading.Thread(target=self._destroy_for, args=(client, timeout, force_timeout), daemon=True).start()

    def _destroy_for(self, client: int, timeout: float | None, force_timeout: float | None) -> None:
        try:
            self.destroy(timeout, force_timeout)
        except TimeoutError as error:
            self._tell(client, (_NOT_DESTROYED, str(error)))

    def _meet(self, client: int, replies: Name, puid: int) -> None:
        try:
            self._others[client] = Channel._attached(replies)
        except DestroyedError:
            return  # it has ended
        self._puids[client] = puid
        if len(self._puids) > self._most_puids:
            # Clients that were killed have not released their tasks.
            ended = [one for one, puid in self._puids.items() if processes.look_up(puid).ecode is not None]
            for one in ended:
                del self._puids[one]
                self._others.pop(one, None)
            self._exported = {key: entry for key, entry in self._exported.items() if key[0] not in ended}
            self._most_puids = 2 * len(self._puids) + 16

    def _submit_for(self, client: int, key: Key, data: bytes | None, buffers: list[Any], value: object) -> None:
        try:
            call: Call = unpack((data, buffers, value))
            entry = self.scheduler.submit(key, call, [self._entry(one) for one in call.inputs])
        except Exception as error:
            self._tell_outcome(client, key, Failure.of(error))
            return
        self._exported[key] = entry
        self._watch_for(client, key)

    def _watch_for(self, client: int, key: Key) -> None:
        try:
            entry = self._entry(key)
        except BatchError as error:
            self._tell_outcome(client, key, Failure.of(error))
            return
        if entry.outcome is None:
            entry.watchers.append(client)
        else:
            self._tell_outcome(client, key, entry.outcome)

    def _cancel_for(self, client: int, key: Key, request: int, running: bool) -> None:
        entry = self._exported.get(key)
        gone = self.scheduler.cancel(entry, cancellation(entry), running) if entry is not None else None
        self._tell(client, (_CANCELLED, request, gone is not None))

    def tell_end(self) -> None:
        """Notify the other clients that the batch has ended."""
        self.is_over = True
        with self.scheduler.lock:
            for client in list(self._others):
                self._tell(client, (_ENDED,))


class _Distant(Promise):
    """A promise of the batch's own process, as another client has it."""

    __slots__ = ("_release",)

    def __init__(self, key: Key, release: Callable[[Key], None] | None) -> None:
        super().__init__(key)
        self._release = release

    def __del__(self) -> None:
        if self._release is not None:
            self._release(self.key)


class OtherClient(_Client):
    """The client in a process that received the batch."""

    def __init__(self, number: int, events: Channel) -> None:
        super().__init__(number)
        self._events = events
        self._requests = itertools.count()
        self._answers: dict[int, queue.SimpleQueue[bool]] = {}
        self._unfinished: dict[Key, Promise] = {}
        self._watched: weakref.WeakValueDictionary[Key, Promise] = weakref.WeakValueDictionary()
        self._destroyed: queue.SimpleQueue[str] = queue.SimpleQueue()  # "", or why the batch was not destroyed
        self._replies = Channel()
        self._events.put((_HELLO, number, self._replies._name(), identity().puid))
        self._thread = threading.Thread(target=self._serve, name="dragon-batch-client", daemon=True)
        self._thread.start()

    def submit(self, key: Key, call: Call) -> Promise:
        """Send a task to the batch's process. Raises SubmitAfterCloseError if the batch has ended."""
        promise = _Distant(key, self._let_go)
        self._unfinished[promise.key] = promise
        call = call._replace(inputs=[one.key if isinstance(one, Promise) else one for one in call.inputs])
        try:
            self._events.put((_SUBMIT, self.number, promise.key, *pack(call)))
        except DestroyedError:
            self._over()
            raise SubmitAfterCloseError("the batch has ended and takes no more tasks") from None
        return promise

    def known(self, key: Key) -> Promise:
        """Return the promise of a task, and request its outcome from the batch's process."""
        promise = self._watched.get(key)
        if promise is None:
            promise = self._watched[key] = _Distant(key, None)
            self._events.put((_WATCH, self.number, key))
        return promise

    def export(self, promise: Promise) -> None:
        """Do nothing: other processes can refer to a task as long as this process keeps it."""

    def cancel(self, promise: Promise, timeout: float | None, running: bool = True) -> bool:
        """Request a cancellation. Returns False if the task was not cancelled, or after `timeout` seconds."""
        request = next(self._requests)
        answer = self._answers[request] = queue.SimpleQueue()
        try:
            self._events.put((_CANCEL, self.number, promise.key, request, running))
            return answer.get(True, _waitable(timeout))
        except (queue.Empty, DestroyedError):
            return False
        finally:
            del self._answers[request]

    def explain(self, promise: Promise) -> str:
        """Raise BatchError: the scheduler is in another process."""
        raise BatchError("a task is explained by the process that made its batch")

    def cancel_all(self, running: bool) -> list[Promise]:
        """Cancel the tasks of this client. Returns the promises of those that were."""
        return [one for one in reversed(self.unfinished()) if self.cancel(one, _ANSWER_S, running)]

    def running(self) -> int:
        """Return 0: which tasks run is known where the batch was made."""
        return 0

    def unfinished(self) -> list[Promise]:
        """Return the promises of this client's tasks that have no outcome yet."""
        return list(self._unfinished.values())

    def destroy(self, timeout: float | None, force_timeout: float | None) -> None:
        """Request that the batch's process ends it. Raises TimeoutError."""
        self._closed = True
        try:
            self._events.put((_DESTROY, self.number, timeout, force_timeout))
        except DestroyedError:
            return
        why = "" if self.is_over else self._destroyed.get()
        if why:
            raise TimeoutError(why)

    def _let_go(self, key: Key) -> None:
        with suppress(DestroyedError, ValueError):  # the batch has ended, or this process is about to
            self._events.put((_RELEASE, self.number, key))

    def _serve(self) -> None:
        try:
            while True:
                what, *rest = self._replies.get()
                if what == _OUTCOME:
                    self._has_ended(*rest)
                elif what == _CANCELLED and rest[0] in self._answers:
                    self._answers[rest[0]].put(rest[1])
                elif what == _NOT_DESTROYED:
                    self._destroyed.put(rest[0])
                elif what == _ENDED:
                    self._over()
        except DestroyedError:
            self._over()

    def _has_ended(self, key: Key, data: bytes | None, buffers: list[Any], value: object) -> None:
        try:
            outcome: Outcome = unpack((data, buffers, value))
        except Exception as error:
            outcome = Failure.of(error)
        promise = self._unfinished.pop(key, None)
        if promise is not None:
            self.ended.add(key[1])
            self.failed += isinstance(outcome, Failure)
        promise = promise or self._watched.get(key)
        if promise is not None:
            promise.fulfil(outcome)

    def _over(self) -> None:
        self._closed = self.is_over = True
        self._destroyed.put("")
        for promise in [*self._unfinished.values(), *self._watched.values()]:
            if promise.outcome is None:
                promise.fulfil(Failure.of(BatchError("the batch ended before this task did")))
        self._unfinished.clear()


Client = OwnClient | OtherClient


def _waitable(timeout: float | None) -> float | None:
    """Return the timeout, limited to the longest that a lock accepts; None for no timeout."""
    timeout = checked_seconds("timeout", timeout)
    return None if timeout is None else min(timeout, threading.TIMEOUT_MAX)


def wait_all(promises: list[Promise], timeout: float | None) -> int:
    """Wait for the ends of tasks. Returns how many have not ended within `timeout` seconds."""
    timeout = checked_seconds("timeout", timeout)
    end = None if timeout is None else time.monotonic() + timeout
    for promise in promises:
        if not promise.wait(None if end is None else max(0.0, end - time.monotonic())):
            return sum(one.outcome is None for one in promises)
    return 0
