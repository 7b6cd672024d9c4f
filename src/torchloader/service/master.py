"""The master: knows nodes and applications, asks the scheduler, tells the application masters, keeps the log."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from queue import Empty
from typing import Any

import msgspec

from dragon.native.queue import Queue
from torchloader.allocation.catalogue import policy
from torchloader.inputs.job import Job
from torchloader.scheduling import actions
from torchloader.scheduling.actions import Action, Cause, Mode, Node
from torchloader.scheduling.application import Application
from torchloader.scheduling.log import EventLog
from torchloader.scheduling.scheduler import Scheduler
from torchloader.scheduling.states import ENDED, State
from torchloader.service.answers import answer
from torchloader.service.attempt import Attempt
from torchloader.service.command import command_of
from torchloader.service.learning import Learning
from torchloader.service.messages import (
    AllSubmitted,
    Asked,
    Ended,
    Introduce,
    Joined,
    Kill,
    Launch,
    Rank,
    Said,
    Submitted,
    Tell,
)
from torchloader.service.pace import PaceFile
from torchloader.service.placing import LackingError, devices_of, job_of, nodes_of, shortened, spec_of
from torchloader.service.presence import absent
from torchloader.service.settings import Settings
from torchloader.training.protocol import Cancelled, Finished, Order, Pause, Paused, Progress, Resize

__all__ = ["FAILED", "LOG", "Master", "lead"]

FAILED = 10  # an exit code that no exception leads to

LOG = "events.jsonl"
_TICK = 1.0  # seconds
_INTERVAL = 2.0  # seconds for which an application is left alone after its workers were changed
_PORTS = range(20000, 32768)  # for ranks to meet, where a job names none; below those that the kernel gives out
_GATHERING = 5.0  # seconds that a master waits for the nodes which it was told of


def lead(inbox: Queue, managers: Mapping[str, Queue], settings: Settings) -> None:
    """Be the master until all applications of the workload have ended. Exit code FAILED where one of them failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(Master(inbox, managers, settings).run())


class Master:
    """Everything happens in one thread, message by message; a second is the longest that it sleeps.

    A master that is started anew replays the log, asks all nodes what runs there, and goes on.
    """

    def __init__(self, inbox: Queue, managers: Mapping[str, Queue], settings: Settings) -> None:
        self._inbox = inbox
        self._managers = managers
        self.settings = settings
        folder = Path(settings.folder)
        self._log = EventLog(folder / LOG)
        self.records = self._log.records
        self._scheduler = Scheduler(policy(settings.policy), Mode(settings.mode), interval=_INTERVAL)
        self.joined: dict[str, Joined] = {}
        self.reasons: dict[str, str] = {}
        self.attempts: dict[str, Attempt] = {}
        self._starts: dict[str, int] = {}
        self._learning: dict[str, Learning] = {}
        self._failures: dict[str, int] = {}
        self._gathering_until: float | None = self.now() + _GATHERING
        self._waiting: list[Submitted] = []
        self.all_submitted = False
        self._ticked = self.now()
        self._highest = 0
        self._pace = PaceFile(folder)

    def now(self) -> float:
        """Seconds since the workload began."""
        return time.time() - self.settings.began

    def run(self) -> int:
        """Until the workload is done; the exit code."""
        for queue in self._managers.values():
            queue.put(Introduce())
        while not self._is_done():
            try:
                message = self._inbox.get(timeout=_TICK)
            except Empty:
                message = None
            self._take(message)
            if self.now() - self._ticked >= _TICK:
                self._tick()
        self._pace.close()
        self._log.close()
        return FAILED if any(each.state is State.FAILED for each in self.records.values()) else 0

    def _is_done(self) -> bool:
        over = all(each.state in ENDED for each in self.records.values())
        return self.all_submitted and over and not self._waiting and not self.settings.hold

    def _take(self, message: Any) -> None:
        match message:
            case Joined():
                self._join(message)
            case Submitted():
                self._waiting.append(message)
                self._submit_those_that_wait()
            case Said():
                self._said(message)
            case Ended():
                self._ended(message)
            case AllSubmitted():
                self.all_submitted = True
            case Asked():
                message.answer.put(msgspec.json.encode(answer(self, message)))

    # ---- nodes

    def _join(self, node: Joined) -> None:
        before = self.joined.get(node.node)
        self.joined[node.node] = node
        if before is not None and before.incarnation == node.incarnation:
            return
        if before is not None:
            for name, attempt in list(self.attempts.items()):
                if node.node in attempt.nodes and node.running.get(name) != attempt.number:
                    self._lose(name, f"the application master of {node.node} was lost")
        if self._gathering_until is not None and self.joined.keys() >= self._managers.keys():
            self._gathered()
        elif self._gathering_until is None:
            self._schedule(Cause.ARRIVAL)

    def _gathered(self) -> None:
        """All nodes are there, or do not come. What ran when a master before this one ended goes on."""
        self._gathering_until = None
        for name, record in list(self.records.items()):
            if not record.holds:
                continue
            running = {node: self.joined[node].running.get(name, 0) for node in record.placement if node in self.joined}
            numbers = set(running.values())
            self._starts[name] = max([*numbers, 0])
            if running.keys() == record.placement.keys() and len(numbers) == 1 and 0 not in numbers:
                self._adopt(record, numbers.pop())
            else:
                for node in running:
                    self.order(node, Kill(name, "its master was started anew"))
                self.change(name, State.QUEUED, "its ranks were lost while the master was started anew")
        self._submit_those_that_wait()
        self._schedule(Cause.ARRIVAL)

    def _adopt(self, record: Application, number: int) -> None:
        """Go on with an application. What it was told last is told again: that may have got lost with the answer."""
        name, size = record.spec.name, sum(map(len, record.placement.values()))
        attempt = self.attempts[name] = Attempt(number, frozenset(record.placement), size, self.now())
        if record.state not in (State.STARTING, State.RESUMING):
            attempt.started = set(range(size))
        if record.state is State.RESIZING:
            self.tell(name, Resize(record.workers, "its master was started anew"))
        elif record.state is State.PAUSING:
            self.tell(name, Pause())

    def order(self, node: str, order: Kill | Launch | Tell | Introduce) -> None:
        """Tell an application master."""
        self._managers[node].put(order)

    def free_cores(self) -> dict[str, int]:
        """Cores for loading that nobody uses, by node."""
        free = {name: node.cores for name, node in self.nodes.items()}
        for record in self.records.values():
            for node, devices in record.placement.items():
                if node in free:
                    free[node] -= len(devices) * record.workers
        return free

    def look_again(self) -> None:
        """Somebody changed what the scheduler decides from."""
        self._schedule(Cause.ARRIVAL)

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes as the scheduler sees them."""
        return nodes_of(self.joined, self.settings, self._highest)

    # ---- applications

    def _submit_those_that_wait(self) -> None:
        if self._gathering_until is not None:
            return
        waiting, self._waiting = self._waiting, []
        for submitted in waiting:
            error = self._submit(shortened(submitted.job, self.settings))
            if error and submitted.job.name not in self.reasons:
                print(f"torchloader: {error}; the job that was submitted is left out", file=sys.stderr)
        if waiting:
            self._schedule(Cause.ARRIVAL)

    def _submit(self, job: Job) -> str:
        """What is wrong with it, if anything is."""
        if job.name in self.records:
            # A submitter that was started anew may submit it again.
            same = job_of(self.records[job.name].spec) == job
            return "" if same else f"there is an application {job.name!r} already"
        self._highest = max([self._highest, *(index for indices in job.devices.by_node for index in indices)])
        try:
            devices, error = devices_of(job, self.nodes, self.settings), ""
        except LackingError as lacking:
            devices, error = job.devices.count, str(lacking)
        self.records.submit(spec_of(job, devices), self.now(), curve=self.settings.guesses.get(job.name))
        if error:
            self.change(job.name, State.FAILED, error)
        return error

    def submit_now(self, submitted: Submitted) -> str:
        """Take a job, if it can be taken; what is wrong with it, if anything is."""
        error = self._submit(shortened(submitted.job, self.settings))
        self._schedule(Cause.ARRIVAL)
        return error

    def change(self, name: str, state: State, reason: str, **details: Any) -> None:
        """An application comes to another state, or more is known of it."""
        self.records.change(name, state, self.now(), reason, **details)
        self.reasons[name] = reason

    def _said(self, said: Said) -> None:
        attempt = self.attempts.get(said.application)
        if attempt is None or attempt.number != said.attempt:
            return
        attempt.note(said.report, self.now())
        record = self.records[said.application]
        if record.state in (State.STARTING, State.RESUMING) and attempt.has_started:
            self.change(said.application, State.RUNNING, "all its ranks train")
        elif record.state is State.RESIZING and len(attempt.resized) >= attempt.size:
            self.change(said.application, State.RUNNING, "all its ranks have their workers")
        if isinstance(said.report, Progress):
            self._learning.setdefault(said.application, Learning()).observe(said.report)

    def _ended(self, ended: Ended) -> None:
        name = ended.application
        attempt = self.attempts.get(name)
        if attempt is None or attempt.number != ended.attempt:
            return
        attempt.codes[ended.node] = ended.codes
        if ended.cause and not attempt.cause:
            attempt.cause = ended.cause
            for node in attempt.nodes - attempt.codes.keys():
                self.order(node, Kill(name, ended.cause))
        if not attempt.is_over:
            return
        del self.attempts[name]
        progress = float(max(attempt.iteration, int(self.records[name].progress)))
        if attempt.all_left(Finished):
            self.change(name, State.FINISHED, "it has come to its end", progress=progress)
        elif attempt.cancelled or attempt.all_left(Cancelled):
            self.change(name, State.CANCELLED, "as it was told", progress=progress)
        elif attempt.all_left(Paused):
            self._paused(name, progress)
        else:
            self._failed(name, attempt, progress)
        self._schedule(Cause.DEPARTURE)

    def _paused(self, name: str, progress: float) -> None:
        if self.records[name].state is not State.PAUSING:
            self.change(name, State.PAUSING, "it was told to pause")
        self.change(name, State.PAUSED, "its checkpoint is on disk", progress=progress)

    def _failed(self, name: str, attempt: Attempt, progress: float) -> None:
        cause = attempt.cause or "its ranks ended before its end, without a word"
        self._failures[name] = self._failures.get(name, 0) + 1
        again = attempt.was_killed and attempt.has_started and not attempt.given_up
        if again and self._failures[name] <= self.settings.retries:
            self.change(name, State.QUEUED, f"{cause}; it goes on from its last checkpoint", progress=progress)
        else:
            self.change(name, State.FAILED, cause, progress=progress)

    def _lose(self, name: str, reason: str) -> None:
        """Its ranks on some node are gone: the others end, and it waits again."""
        attempt = self.attempts.pop(name, None)
        for node in attempt.nodes if attempt else ():
            if node in self.joined:
                self.order(node, Kill(name, reason))
        self.change(name, State.QUEUED, f"{reason}; it goes on from its last checkpoint")

    def _place_again(self) -> None:
        """Nodes are lost: who waits for one of them gets another one, if there is one."""
        for name, record in list(self.records.items()):
            if not record.waits:
                continue
            try:
                devices = devices_of(job_of(record.spec), self.nodes, self.settings)
            except LackingError as error:
                self.change(name, State.FAILED, f"{self.reasons.get(name, 'a node is lost')}; but {error}")
                continue
            if devices != record.spec.devices:
                self.change(name, record.state, "on other nodes", devices=devices)

    # ---- scheduling

    def _schedule(self, cause: Cause) -> None:
        if self._gathering_until is not None:
            return
        for action in self._scheduler.decide(self.now(), self.records, self.nodes, cause):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case actions.Launch():
                self._launch(action, State.STARTING)
            case actions.Resume():
                self._launch(action, State.RESUMING)
            case actions.Resize():
                self.resize(action.name, action.workers, action.reason)
            case actions.Pause():
                self.change(action.name, State.PAUSING, action.reason)
                self.tell(action.name, Pause())
            case actions.Requeue():
                self._lose(action.name, action.reason)

    def _launch(self, action: actions.Launch | actions.Resume, state: State) -> None:
        name, job = action.name, job_of(self.records[action.name].spec)
        self.change(name, state, action.reason, workers=action.workers, placement=action.placement)
        number = self._starts[name] = self._starts.get(name, 0) + 1
        size = sum(map(len, action.placement.values()))
        self.attempts[name] = Attempt(number, frozenset(action.placement), size, self.now())
        first = self.joined[next(iter(action.placement))]
        address = "127.0.0.1" if len(action.placement) == 1 or self.settings.rehearse else first.address
        taken = 0
        for node, devices in action.placement.items():
            cpu = self.settings.device == "cpu"
            ranks = tuple(Rank(taken + place, None if cpu else device) for place, device in enumerate(devices))
            taken += len(devices)
            self.order(
                node,
                Launch(
                    name,
                    number,
                    command_of(job, self.settings),
                    not job.script,
                    ranks,
                    size,
                    address,
                    job.port or secrets.choice(_PORTS),
                    action.workers,
                    os.path.abspath(job.output_folder),
                    dict(job.environment),
                ),
            )

    def resize(self, name: str, workers: int, reason: str) -> None:
        """Have so many workers for each of its devices."""
        self.change(name, State.RESIZING, reason, workers=workers)
        self.attempts[name].resized.clear()
        self.tell(name, Resize(workers, reason))

    def tell(self, name: str, order: Order) -> None:
        """Give all its ranks an order."""
        for node in self.attempts[name].nodes:
            self.order(node, Tell(name, order))

    # ---- as time goes by

    def _tick(self) -> None:
        now = self._ticked = self.now()
        if self._gathering_until is not None:
            if now > self._gathering_until:
                self._gathered()
            return
        self._look_for_lost_nodes()
        for name, attempt in list(self.attempts.items()):
            if now - attempt.heard > self.settings.silence:
                reason = f"no rank has said anything for {self.settings.silence:.0f} s"
                attempt.cause, attempt.given_up = attempt.cause or reason, True
                for node in attempt.nodes:
                    self.order(node, Kill(name, reason))
                attempt.heard = now
            elif attempt.latest:
                self._pace.write(now, name, attempt.pace, self.records[name].workers)
        self._look_at_curves()

    def _look_for_lost_nodes(self) -> None:
        lost = absent(self.joined)
        for node in lost:
            del self.joined[node]
        for name, attempt in list(self.attempts.items()):
            gone = sorted(attempt.nodes & lost)
            if gone:
                self._lose(name, f"node {gone[0]} is lost")
        if lost:
            self._place_again()
            self._schedule(Cause.LOST)

    def _look_at_curves(self) -> None:
        changed = False
        for name, learning in self._learning.items():
            record = self.records[name]
            if record.state is not State.RUNNING:
                continue
            curve = learning.news(self._sharers(record))
            if curve is not None:
                progress = float(self.attempts[name].iteration)
                self.change(name, State.RUNNING, "its curve was measured", curve=curve, progress=progress)
                changed = True
        due = self._scheduler.next_time(self.now() - _TICK, self.records)
        if changed:
            self._schedule(Cause.DRIFT)
        elif due is not None and due <= self.now():
            self._schedule(Cause.DUE)

    def _sharers(self, record: Application) -> int:
        """How many applications use its most used device."""
        mine = [(node, device) for node, devices in record.placement.items() for device in devices]
        return max(
            sum(
                node in each.placement and device in each.placement[node]
                for each in self.records.values()
                if each.holds
            )
            for node, device in mine
        )
