"""Schedules the tasks of a batch: their dependencies, what is sent to the workers, and the results.

It runs in the process that made the batch. One thread handles the messages of workers and other clients; threads that
submit in this process change the state directly. All hold the same lock.
"""

from __future__ import annotations

import heapq
import itertools
import pickle
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterator
from typing import Any

from dragon import cpython
from dragon.infrastructure.errors import DestroyedError
from dragon.native.workers import MEMORY_PAUSE_S, MOST_WITHOUT_MEMORY_S, channel_of_results, most_mebibytes
from dragon.runtime.handle import Channel, Words
from dragon.runtime.log import runtime_log
from dragon.workflows.batch.call import NEVER, Call, Kind
from dragon.workflows.batch.crew import LOST, NO_WORKER, WORKERS, Crew
from dragon.workflows.batch.errors import BatchError, SubmitAfterCloseError, TaskCancelledError
from dragon.workflows.batch.explainer import Explainer
from dragon.workflows.batch.journal import Journal
from dragon.workflows.batch.order import (
    Accesses,
    Entry,
    Need,
    Places,
    State,
    cancellation,
    given_up,
    inherited,
    overdue,
    uid_of,
    unwritten,
)
from dragon.workflows.batch.outcome import Failure, Key, Outcome, Promise, Value, received, worded
from dragon.workflows.batch.resources import Allocator, FailingNodes
from dragon.workflows.batch.table import TaskTable
from dragon.workflows.batch.worker import ENDED, REFUSES, RUNS, cancelled, claimed, queued, worker_of

log = runtime_log("batch")

_AT_A_TIME = 256  # messages that are processed before other threads get the lock
_MOST_NAMED = 4  # tasks in an explanation
_MOST_TOLD, _MOST_FAILED = 20, 1000  # tasks that tell() explains, and failed ones of which it knows
_KILL_DELAY_S = 5.0  # seconds between SIGTERM and SIGKILL for what was cancelled


class Timers:
    """Calls to be made later, and deadlines of tasks, by the numbers that are in `live`."""

    def __init__(self, live: Container[int]) -> None:
        self._live = live
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        # By number, so that a task that has ended, and its result, are not kept alive.
        self._deadlines: list[tuple[float, int]] = []
        self._looked_through = 64

    def call_after(self, seconds: float, call: Callable[[], None]) -> None:
        """Make the call due after `seconds`."""
        heapq.heappush(self._calls, (time.monotonic() + seconds, next(self._numbers), call))

    def end_after(self, seconds: float, number: int) -> None:
        """Set a task's deadline, in seconds from now."""
        heapq.heappush(self._deadlines, (time.monotonic() + seconds, number))
        if len(self._deadlines) > self._looked_through:
            self._deadlines = [one for one in self._deadlines if one[1] in self._live]
            heapq.heapify(self._deadlines)
            self._looked_through = 2 * len(self._deadlines) + 64

    def left(self) -> float | None:
        """Return the seconds until the next timer; None if there is none."""
        due = min((heap[0][0] for heap in (self._calls, self._deadlines) if heap), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def due_calls(self, early: bool = False) -> Iterator[Callable[[], None]]:
        """Remove and yield the calls that are due, or all of them if `early`."""
        while self._calls and (early or self._calls[0][0] <= time.monotonic()):
            yield heapq.heappop(self._calls)[2]

    def overdue(self) -> Iterator[int]:
        """Remove and yield the tasks that have passed their deadline."""
        while self._deadlines and self._deadlines[0][0] <= time.monotonic():
            number = heapq.heappop(self._deadlines)[1]
            if number in self._live:
                yield number


class Scheduler:
    """The tasks of one batch.

    Args:
        crew: starts the workers, given the channels of tasks and events and the claims.
        workers: the number of workers.
        most_jobs: the largest number of jobs that run at a time; None for no limit.
        ended: called for each task that has ended, with the lock held.
        told: called for messages that are not from workers, with the lock held.
        journal: has the results of an earlier run, and gets those of this one.
        table: gets a line for each task that has ended.
    """

    def __init__(
        self,
        crew: Callable[[Channel, Channel, Words], Crew],
        workers: int,
        most_jobs: int | None = None,
        *,
        ended: Callable[[Entry], None],
        told: Callable[[tuple[Any, ...]], None] = lambda message: None,
        journal: Journal | None = None,
        table: TaskTable | None = None,
    ) -> None:
        self.lock = threading.RLock()
        self.closed = False
        self.broken = ""  # why no tasks can be run any more, if that is so
        self._ended, self._told, self._journal, self._table = ended, told, journal, table
        self._numbers = itertools.count(1)
        self._unfinished: dict[int, Entry] = {}
        self._ending: dict[int, Entry] = {}
        self._failing = FailingNodes()
        self._done = 0
        self._failures = 0
        self._failed: deque[Entry] = deque(maxlen=_MOST_FAILED)
        self._accesses = Accesses()
        self._timers = Timers(self._unfinished)
        self._stops = False
        self._wakes = True  # whether threads that wait for a task are woken when it ends
        self.events, self._tasks, most = channel_of_results(), Channel(), most_mebibytes() << 20
        self._places: Places | Allocator = Places(workers, most_jobs, lambda: self._tasks._bytes() >= most)
        self._claims = Words(len(self._places.free_slots()))
        self._explainer = Explainer(self.tell)
        try:
            self.crew = crew(self._tasks, self.events, self._claims)
        except BaseException:
            self._explainer.close()
            raise
        self.thread = threading.Thread(target=self._serve, name="dragon-batch", daemon=True)
        self.thread.start()

    # ---- submitting

    def submit(self, key: Key, call: Call, inputs: list[Entry]) -> Entry:
        """Add a task. Raises SubmitAfterCloseError after the end of the batch, BatchError if it is broken."""
        with self.lock:
            if self.broken:
                raise BatchError(f"no task can be run any more: {self.broken}")
            if self.closed:
                raise SubmitAfterCloseError("the batch has ended and takes no more tasks")
            if self._journal is not None:
                call = self._journal.named(call)
            if call.demand is not None and isinstance(self._places, Places):
                self._divide(self._places)
            entry = Entry(key, next(self._numbers), call)
            if why := self._places.refusal(entry):
                raise ValueError(why)
            self._unfinished[entry.number] = entry
            entry.inputs = inputs
            if self._journal is not None and (known := self._journal.take(call, all(i.restored for i in inputs))):
                entry.restored = True
                self._complete(entry, known)
                return entry
            failed = [f for one in inputs if (f := self._depend(entry, one, Need.RESULT))]
            for before, reads in self._accesses.add(entry, call.accesses) if call.accesses else ():
                if isinstance(before, str):
                    failed.append(unwritten(before))
                elif f := self._depend(entry, before, Need.DATA if reads else Need.ORDER):
                    failed.append(f)
            if failed:
                self._complete(entry, failed[0])
            elif not entry.missing:
                self._make_ready(entry)
        return entry

    def _depend(self, entry: Entry, before: Entry, need: Need) -> Failure | None:
        """Let a task wait for another. If that one has failed already, return how the task fails because of it."""
        if before.outcome is None:
            before.dependents.append((entry, need))
            entry.missing += 1
            return None
        return inherited(before, before.outcome, need)

    def _make_ready(self, entry: Entry) -> None:
        if why := self._places.refusal(entry):  # a node is lost since
            entry.state, failure = State.WAITING, Failure.of(BatchError(why))
            self._after(0, lambda: self._complete(entry, failure))
            return
        entry.state = State.READY
        self._places.wait(entry)
        self._fill()

    def _fill(self) -> None:
        """Send the tasks that have a slot."""
        while entry := self._places.next():
            entry.state = State.SENT
            self._claims[entry.slot] = queued(entry.number)
            self._put(entry)

    def _put(self, entry: Entry, since: float | None = None) -> None:
        """Send a task, again if a worker died before it could claim it, or if there was no memory for it."""
        call = entry.call
        assert call is not None
        tells = entry.timeout < NEVER
        try:
            results = [one.outcome.sent() for one in entry.inputs if isinstance(one.outcome, Value)]
            buffers = [pickle.PickleBuffer(buffer) for buffer in call.buffers]
            message = (entry.number, entry.slot, int(entry.kind), tells, call.data, buffers, results, call.streams,
                       entry.shares or None, bool(entry.demand and entry.demand.cpus))  # fmt: skip
            self.crew.queue(entry.node)._put_task(message, entry.number)
        except MemoryError as error:
            began = time.monotonic() if since is None else since
            if time.monotonic() - began > MOST_WITHOUT_MEMORY_S:
                failure = Failure.of(error)
                self._after(0, lambda: self._complete(entry, failure))
            else:
                self._after(MEMORY_PAUSE_S, lambda: self._put_again(entry, began))
        except Exception as error:
            failure = Failure.of(error)
            self._after(0, lambda: self._complete(entry, failure))

    def _put_again(self, entry: Entry, since: float) -> None:
        if self._is_unclaimed(entry):  # it was not cancelled
            self._put(entry, since)

    # ---- tasks that ask for resources

    def _divide(self, shared: Places) -> None:
        """Give each node a queue of its own, from now on. Tasks that no worker has begun are put there again."""
        places = Allocator(self.crew.divide(), shared)
        ready = []
        for entry in [*self._ending.values(), *self._unfinished.values()]:
            if entry.outcome is None and entry.state == State.SENT and self._withdraw(entry):
                shared.leave(entry)
            elif entry.slot >= 0:
                worker = worker_of(self._claims[entry.slot], entry.number)
                node = -1 if worker is None else self.crew.node_of(worker)
                if node >= 0:
                    places.hold(entry, node)
            if entry.state == State.READY:
                ready.append(entry)
        self._places = places
        for entry in ready:
            self._make_ready(entry)

    def _withdraw(self, entry: Entry) -> bool:
        """Take back a task that was sent, unless a worker has begun it. It keeps its slot."""
        if not self._claims.swap_if(entry.slot, queued(entry.number), cancelled(entry.number)):
            return False
        self._renumber(entry, State.READY)
        return True

    def _renumber(self, entry: Entry, state: State) -> None:
        """Give a task a number of its own for its next try: messages about this one may still come."""
        del self._unfinished[entry.number]
        entry.number, entry.state, entry.running = next(self._numbers), state, None
        self._unfinished[entry.number] = entry

    def _workers_changed(self, worker: int) -> None:
        """Note that a worker cannot be replaced, as its node is lost, or that it could after all."""
        index = -1 if isinstance(self._places, Places) else self.crew.node_of(worker)
        if isinstance(self._places, Places) or index < 0:
            return
        node = self._places.nodes[index]
        node.workers = self.crew.workers_of(index)
        if node.workers == 0:
            for entry in list(self._unfinished.values()):
                if entry.state == State.SENT and entry.node == index and self._withdraw(entry):
                    self._places.leave(entry)
                    self._make_ready(entry)
                elif entry.state == State.READY and (why := self._places.refusal(entry)):
                    self._complete(entry, Failure.of(BatchError(why)))
        self._fill()

    # ---- ending

    def _complete(self, entry: Entry, outcome: Outcome, stays: bool = False) -> None:
        """End a task, and with it those that cannot start any more. `stays`: its slot is still in use."""
        ending: deque[tuple[Entry, Outcome]] = deque([(entry, outcome)])
        while ending:
            one, outcome = ending.popleft()
            if one.outcome is not None:
                continue
            self._unfinished.pop(one.number, None)
            if self._table is not None:
                self._table.add(one, outcome)
            if one.state == State.SENT and not stays:
                self._places.leave(one)
            stays = False
            one.state = State.ENDED
            if self._journal is not None and one.call is not None and not one.restored:
                self._journal.add(one.call, outcome)
            one.call, one.inputs = None, []
            if one.accesses:
                self._accesses.ended(one, f"{one}: {outcome.brief}" if isinstance(outcome, Failure) else "")
            one.fulfil(outcome, self._wakes)
            if isinstance(outcome, Failure):
                self._failures += 1
                self._failed.append(one)
            else:
                self._done += 1
            self._ended(one)
            dependents, one.dependents = one.dependents, []
            for dependent, need in dependents:
                if dependent.outcome is not None:
                    continue
                dependent.missing -= 1
                if failure := inherited(one, outcome, need):
                    ending.append((dependent, failure))
                elif not dependent.missing:
                    self._make_ready(dependent)
        self._fill()

    def _tried(self, entry: Entry, outcome: Outcome, worker: int | None = None) -> None:
        """End a task whose worker has ended this try, or, without `worker`, was lost, or try it again."""
        pause = entry.pause_before_retry(outcome, worker is None)
        failed = pause is not None or isinstance(outcome, Failure)
        counts = pause is not None or entry.failed_on or (self._failing.watches and not failed)
        if worker is not None and counts:
            self._note_node(entry, self.crew.host_of(worker), failed)
        if pause is not None:
            self._places.leave(entry)
            self._try_again(entry, pause)
            self._fill()
        elif entry.faults and isinstance(outcome, Failure):
            tries = "; ".join(f"{number}: {fault}" for number, fault in enumerate(entry.faults, 1))
            self._complete(entry, outcome.noted(f"after other tries of {entry}: {tries}"))
        else:
            self._complete(entry, outcome)

    def _note_node(self, entry: Entry, host: int, failed: bool) -> None:
        """Note how a try ended on a node, which may be paused because of it, or run again."""
        if not self.crew.has_others(host):
            return
        before = self._failing.paused.copy()
        if failed:
            pause = self._failing.failed(host, entry.failed_on)
            entry.failed_on += (host,)
            if pause:
                fault = entry.faults[-1] if entry.faults else "it has failed"
                log.warning("one task after another fails on %s, which gets none for %g s; the last: %s: %s",
                            self.crew.name_of(host), pause, entry, fault)  # fmt: skip
                self._after(pause, lambda: self._end_pause(host))
        else:
            self._failing.succeeded(host)
        if self._failing.paused != before:
            self._pause()

    def _end_pause(self, host: int) -> None:
        self._failing.end_pause(host)
        self._pause()

    def _pause(self) -> None:
        """Let the nodes that are paused have no tasks, and take back those that they have not begun."""
        if isinstance(self._places, Places):
            self._divide(self._places)
        assert not isinstance(self._places, Places)
        paused = self._places.pause(self._failing.paused)
        for entry in list(self._unfinished.values()) if paused else ():
            if entry.state == State.SENT and entry.node in paused and self._withdraw(entry):
                self._places.leave(entry)
                self._make_ready(entry)
        self._fill()

    def _try_again(self, entry: Entry, pause: float) -> None:
        """Let a task wait for its next try."""
        assert entry.call is not None
        self._renumber(entry, State.WAITING)
        for _, send in entry.call.handles:
            send()
        self._after(pause, lambda: None if entry.outcome else self._make_ready(entry))

    # ---- cancelling

    def cancel(self, entry: Entry, failure: Failure, running: bool = True, retries: bool = False) -> Promise | None:
        """End a task with that outcome, or with `retries` let it be tried again.

        Returns a promise that is fulfilled when its processes have ended; None if it ended before, or if it runs and
        `running` is False.
        """
        with self.lock:
            if entry.outcome is not None:
                return None
            if entry.state != State.SENT or self._claims.swap_if(
                entry.slot, queued(entry.number), cancelled(entry.number)
            ):
                self._complete(entry, failure)
                return entry
            return self._end_running(entry, failure, retries) if running else None

    def cancel_all(self, client: int, running: bool) -> list[Promise]:
        """Cancel the tasks of a client: first those that wait, so that no worker begins another one meanwhile, and
        those that run only if `running`."""
        failure = Failure.of(TaskCancelledError("all tasks of the process that submitted it were cancelled"))
        with self.lock:
            every = [self.cancel(entry, failure, running) for entry in reversed(self.unfinished(client))]
        return [gone for gone in every if gone is not None]

    def _end_running(self, entry: Entry, failure: Failure, retries: bool) -> Promise | None:
        number = entry.number
        worker, is_function = worker_of(self._claims[entry.slot], number), entry.kind == Kind.FUNCTION
        if worker is None or (
            is_function and not self._claims.swap_if(entry.slot, claimed(number, worker), cancelled(number))
        ):
            if entry.call is not None and not retries:  # the end of this try, which is on its way here, is the last one
                entry.call = entry.call._replace(retry=None)
            return None
        if is_function:
            self._after(_KILL_DELAY_S, self.crew.end_worker(worker))
        elif entry.running is not None:
            self._stop(entry)
        entry.ends = Promise(entry.key)
        pause = entry.pause_before_retry(failure, lost=False) if retries else None
        if pause is None:
            self._ending[number] = entry
            self._complete(entry, failure, stays=True)
        elif entry.call is not None:
            self._ending[number] = entry.left(entry.call, failure)
            self._try_again(entry, pause)
        return entry.ends

    def _stop(self, entry: Entry) -> None:
        """End the process or job of a task, first with SIGTERM."""
        assert entry.running is not None
        self._after(_KILL_DELAY_S, self.crew.end_processes(entry.running))

    def _gone(self, entry: Entry) -> None:
        """Note that a task that was cancelled while it ran has ended."""
        self._places.leave(entry)
        if entry.ends is not None and entry.outcome is not None:
            entry.ends.fulfil(entry.outcome)
        self._fill()

    # ---- what is told

    def _serve(self) -> None:
        try:
            while not self._take():
                pass
        except DestroyedError:
            self._break("the run has ended")
        except BaseException as error:
            self._break(f"an error in the scheduler: {worded(error)}")  # otherwise clients would wait forever
            raise

    def _take(self) -> bool:
        """Process pending messages. Returns True at the end."""
        try:
            message = self.events.get(True, self._time_left())
        except queue.Empty:
            with self.lock:
                self._call_timers()
            return False
        with self.lock:
            for left in reversed(range(_AT_A_TIME)):
                if self._stops:
                    return True
                self._heard(message)
                if not left or self.events.empty():
                    break
                message = self.events.get_nowait()
            self._call_timers()
        return False

    def _heard(self, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == ENDED:
            _, number, worker, seconds, succeeded, result = message
            entry = self._unfinished.get(number)
            if entry is not None:
                if self._table is not None:
                    entry.place = *self.crew.place_of(worker), seconds
                self._tried(entry, received(result) if succeeded else result, worker)
            elif (entry := self._ending.pop(number, None)) is not None:
                self._gone(entry)
        elif kind == RUNS:
            self._runs(*message[1:])
        elif kind == LOST:
            self._lost(*message[1:])
        elif kind == WORKERS:
            self._workers_changed(*message[1:])
        elif kind == NO_WORKER:
            self._break(f"no worker is left: {worded(message[1])}")
        elif kind == REFUSES:
            self.give_up(f"the initializer raised {message[1].text}")
        else:
            self._told(message)

    def _runs(self, number: int, running: tuple[int, int] | None) -> None:
        entry = self._unfinished.get(number) or self._ending.get(number)
        if entry is None:
            return
        entry.running = running
        if entry.outcome is not None and running is not None:
            self._stop(entry)
        elif entry.outcome is None and entry.timeout < NEVER:
            self._timers.end_after(entry.timeout, number)

    def _lost(self, number: int, error: BaseException) -> None:
        """Handle the death of the worker that had this task."""
        entry = self._unfinished.get(number)
        if entry is not None and self._is_unclaimed(entry):
            self._put(entry)
        elif entry is not None and not self._has_other_worker(entry):
            if entry.running is not None:
                self._stop(entry)
            self._tried(entry, Failure.of(error))
        elif entry is None and (entry := self._ending.pop(number, None)) is not None:
            self._gone(entry)

    def _has_other_worker(self, entry: Entry) -> bool:
        worker = worker_of(self._claims[entry.slot], entry.number)
        return worker is not None and self.crew.task_of(worker) == entry.number

    def _is_unclaimed(self, entry: Entry) -> bool:
        return entry.state == State.SENT and self._claims[entry.slot] == queued(entry.number)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.call_after(seconds, call)
        if threading.current_thread() is not self.thread:
            self._wake()

    def _wake(self) -> None:
        """Wake the thread, which may wait for a later timer. Never waits, as the caller may hold the lock."""
        try:
            self.events.put_nowait((RUNS, 0, None))
        except queue.Full:
            pass  # it has messages to process
        except MemoryError:
            again = threading.Timer(MEMORY_PAUSE_S, self._wake)
            again.daemon = True
            again.start()
        except DestroyedError:
            pass  # the run has ended, which ends the thread as well

    def _time_left(self) -> float | None:
        with self.lock:
            return self._timers.left()

    def _call_timers(self) -> None:
        for call in self._timers.due_calls():
            call()
        for number in self._timers.overdue():
            entry = self._unfinished[number]
            self.cancel(entry, overdue(entry), retries=True)

    # ---- looking, and the end

    def unfinished(self, client: int | None = None) -> list[Entry]:
        """Return the tasks that have not ended, of one client or of all."""
        with self.lock:
            return [entry for entry in self._unfinished.values() if client in (None, entry.key[0])]

    def runs(self, entry: Entry) -> bool:
        """Return whether a worker has begun that task."""
        with self.lock:
            sent = entry.state == State.SENT
            return sent and worker_of(self._claims[entry.slot], entry.number) is not None

    def explain(self, entry: Entry) -> str:
        """Return in a sentence what a task waits for, where it runs, or how it ended."""
        with self.lock:
            tries = f" Tries before: {'; '.join(entry.faults)}." if entry.faults else ""
            return f"{entry} {self._state_of(entry)}.{tries}"

    def tell(self, word: str) -> list[str]:
        """Explain the tasks of that uid or name, also some that have failed. Without a word, say how many tasks are in
        which state, and explain some of them."""
        with self.lock:
            every, failed = [*self._unfinished.values()], [*self._failed]
            if word:
                meant = [entry for entry in [*every, *failed] if word in (uid_of(entry.key), entry.name)]
                return [*map(self.explain, meant[:_MOST_TOLD])]
            running = [entry for entry in every if self.runs(entry)]
            waiting = [entry for entry in every[: 2 * _MOST_TOLD] if not self.runs(entry)]
            some = [*running[:_MOST_TOLD], *waiting[: _MOST_TOLD // 2], *failed[-_MOST_TOLD // 2 :]]
            counts = f"{self._done} done, {len(running)} run, {len(every) - len(running)} wait, {self._failures} failed"
            return [f"tasks: {counts}", *map(self.explain, some)]

    def _state_of(self, entry: Entry) -> str:
        if isinstance(entry.outcome, Failure):
            return f"failed: {entry.outcome.brief}"
        if entry.outcome is not None:
            return "has ended" + ", in an earlier run" * entry.restored
        if entry.state == State.READY:
            return f"waits for {self._places.lacking(entry)}"
        if entry.state == State.SENT:
            worker = worker_of(self._claims[entry.slot], entry.number)
            busy = f"waits for a worker; {self.crew.running()} of them run tasks"
            return busy if worker is None else f"runs in {self.crew.describe(worker)}"
        every = self._unfinished.values()
        before = [str(one) for one in every if any(other is entry for other, _ in one.dependents)]
        rest = f" and {len(before) - _MOST_NAMED} more" if len(before) > _MOST_NAMED else ""
        return f"waits for {'the end of ' + ', '.join(before[:_MOST_NAMED]) + rest if before else 'its next try'}"

    def give_up(self, why: str) -> None:
        """Stop running tasks, for this reason; unfinished ones fail with it."""
        self.crew.stop_replacing()
        self._break(why)

    def _break(self, why: str) -> None:
        with self.lock:
            self.broken = self.broken or why
            self._fail_all(self.broken)

    def _fail_all(self, why: str) -> None:
        """End every task that has not ended with an error."""
        with self.lock:
            self.closed = True
            for entry in list(self._unfinished.values()):
                self._complete(entry, given_up(entry, why))

    def finish(self) -> None:
        """Let the workers end, when no task is left; wait for cancelled tasks to end."""
        with self.lock:
            self.closed = True
            ends = self._ends()
        deadline = time.monotonic() + 2 * _KILL_DELAY_S
        for one in ends:
            one.wait(max(0.0, deadline - time.monotonic()))
        self.crew.finish(_KILL_DELAY_S)

    def _ends(self) -> list[Promise]:
        return [entry.ends for entry in self._ending.values() if entry.kind != Kind.FUNCTION and entry.ends]

    def terminate(self, patience: float) -> None:
        """Cancel all tasks; what does not end within `patience` seconds is killed."""
        with self.lock:
            self.closed = True
            self.crew.stop_replacing()
            for entry in list(self._unfinished.values()):
                self.cancel(entry, cancellation(entry))
            ends = self._ends()
        deadline = time.monotonic() + patience
        for one in ends:
            one.wait(max(0.0, deadline - time.monotonic()))
        with self.lock:
            for call in self._timers.due_calls(early=True):
                call()  # SIGKILL for what is left
        self.crew.terminate(max(0.1, deadline - time.monotonic()))
        self._fail_all("the batch was terminated")

    def end(self) -> None:
        """End the workers and the thread, whatever they are doing.

        When the program exits, threads that wait for tasks are not woken: they are daemon threads, which wait to the
        end, as for a pool.
        """
        with self.lock:
            self._wakes = not cpython.is_exiting()
            for entry in [*self._unfinished.values(), *self._ending.values()]:
                if entry.running is not None:
                    self.crew.end_processes(entry.running)()
        self.crew.terminate()
        self._fail_all("the batch has ended")
        if self._journal is not None:
            self._journal.close()
        if self._table is not None:
            self._table.close()
        self._explainer.close()
        self._stops = True
        if self.thread.is_alive():
            self._wake()
            if threading.current_thread() is not self.thread:  # the thread itself may garbage collect the batch
                self.thread.join()
