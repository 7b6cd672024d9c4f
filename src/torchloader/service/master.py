"""The master: keeps the nodes, applications and event log, calls the scheduler, and sends orders to the application
masters."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty

from dragon.native.queue import Queue
from torchloader.allocation.catalogue import policy
from torchloader.inputs.job import Job
from torchloader.scheduling import application as actions
from torchloader.scheduling.application import ENDED, Action, Application, Away, Cause, Mode, Node, State, names
from torchloader.scheduling.log import EventLog
from torchloader.scheduling.orders import order
from torchloader.scheduling.scheduler import Scheduler
from torchloader.service import messages
from torchloader.service.attempt import Attempt, Learning, PaceFile
from torchloader.service.lending import Lender
from torchloader.service.placing import (
    LackingError,
    absent,
    devices_of,
    highest_of,
    job_of,
    launches,
    nodes_of,
    sharers,
    shortened,
    spec_of,
)
from torchloader.service.settings import LOG, Settings
from torchloader.training.protocol import Order, Pause, Progress, Resize

_TICK_S = 1.0
_CHANGE_INTERVAL_S = 2.0  # seconds for which the workers of an application are not changed again
_GATHER_TIMEOUT_S = 30.0  # seconds that a master waits for nodes that are not lost, but do not join

Reply = Callable[["Master", messages.Request], None]


class Master:
    """The master of a cluster. It handles one message at a time, in one thread, and waits at most a second for the
    next. `reply` handles commands. A restarted master replays the log, asks all nodes what runs there and what has
    ended, and continues when all nodes have replied that are not lost, or after half a minute."""

    def __init__(self, inbox: Queue, managers: Mapping[str, Queue], settings: Settings, reply: Reply) -> None:
        self._inbox, self._managers, self._reply, self.settings = inbox, managers, reply, settings
        folder = Path(settings.folder)
        self._log = EventLog(folder / LOG)
        self.records = self._log.records
        self._scheduler = Scheduler(
            policy(settings.policy),
            Mode(settings.mode),
            order(settings.order),
            interval=_CHANGE_INTERVAL_S,
            anywhere=settings.anywhere,
        )
        self.joined: dict[str, messages.Joined] = {}
        self.reasons: dict[str, str] = {}
        self.attempts: dict[str, Attempt] = {}
        self._learning: dict[str, Learning] = {}
        self._failures: dict[str, int] = {}
        self._gather_until: float | None = self.now() + _GATHER_TIMEOUT_S  # None when it is known what runs
        self._postponed: list[messages.ToMaster] = []  # until then
        self.all_submitted = False
        self._ticked = self.now()
        self._highest = max((highest_of(job_of(each.spec)) for each in self.records.values()), default=0)
        # The kinds of devices that jobs name, in the order of submission.
        self._kinds = dict.fromkeys(kind for each in self.records.values() for kind in each.spec.speeds)
        self._pace = PaceFile(folder)
        self._lender = Lender(settings.rehearse)

    def now(self) -> float:
        return time.time() - self.settings.began

    def run(self) -> bool:
        """Run until the workload is done. Returns whether no application failed."""
        for queue in self._managers.values():
            queue.put(messages.Introduce())
        while (
            not self.all_submitted
            or self.settings.hold
            or any(each.state not in ENDED for each in self.records.values())
        ):
            try:
                message = self._inbox.get(timeout=_TICK_S)
            except Empty:
                message = None
            if message is not None and (self._gather_until is None or isinstance(message, messages.Joined)):
                self._handle(message)
            elif message is not None:
                self._postponed.append(message)
            if self.now() - self._ticked >= _TICK_S:
                self._tick()
        self._pace.close()
        self._log.close()
        return all(each.state is not State.FAILED for each in self.records.values())

    def _handle(self, message: messages.ToMaster) -> None:
        match message:
            case messages.Joined():
                self._join(message)
            case messages.Submitted():
                error = self.submit_now(message.job)
                if error and message.job.name not in self.reasons:
                    print(f"torchloader: {error}; the job that was submitted is left out", file=sys.stderr)
            case messages.Reported() | messages.Ended():
                attempt = self.attempts.get(message.application)
                if attempt is not None and attempt.number == message.attempt:  # else it is of an earlier start
                    if isinstance(message, messages.Ended):
                        self._ended(message, attempt)
                    else:
                        self._reported(message, attempt)
            case messages.AllSubmitted():
                self.all_submitted = self.all_submitted or message.names <= self.records.keys()
            case messages.Granted():
                if self._lender.granted(message):
                    self._schedule(Cause.LENT)
            case messages.Request():
                self._reply(self, message)

    # ---- nodes

    def _join(self, node: messages.Joined) -> None:
        before = self.joined.get(node.node)
        self.joined[node.node] = node
        if before is None or before.incarnation != node.incarnation:
            self._lender.forget(node.node)
        if self._gather_until is not None:
            self._postponed += node.ended
            self._begin_if_gathered()
        elif before is None or before.incarnation != node.incarnation:
            for name, attempt in list(self.attempts.items()):
                if node.node in attempt.nodes and not node.has(name, attempt.number):
                    self._lose(name, f"the application master of {node.node} was lost")
            self._end_strays(node)
            self._schedule(Cause.ARRIVAL)

    def _begin_if_gathered(self) -> None:
        if self._gather_until is None:
            return
        if (
            self.now() <= self._gather_until
            and not self._managers.keys() - absent(self._managers) <= self.joined.keys()
        ):
            return
        # Applications that an earlier master started continue.
        for name, record in list(self.records.items()):
            if not record.holds:
                continue
            if all(node in self.joined and self.joined[node].has(name, record.starts) for node in record.placement):
                self._adopt(record)
            else:
                self._put_back(name, "its ranks were lost while the master was restarted")
        for node in self.joined.values():
            self._end_strays(node)
        for message in self._postponed:
            self._handle(message)
        self._gather_until = None
        self._place_again()
        self._schedule(Cause.ARRIVAL)

    def _end_strays(self, node: messages.Joined) -> None:
        """End the ranks on a node that should not run there any more."""
        for name, number in node.running.items():
            attempt = self.attempts.get(name)
            if attempt is None or attempt.number != number or node.node not in attempt.nodes:
                self.send(node.node, messages.Kill(name, "the master has started it again, or it has ended"))

    def _adopt(self, record: Application) -> None:
        name = record.spec.name
        attempt = self._follow(record)
        if record.state not in (State.STARTING, State.RESUMING):
            attempt.started = set(range(attempt.size))
        if record.state is State.RESIZING:
            self._send_workers(record, "its master was restarted")
        elif record.state is State.PAUSING:
            self.send_ranks(name, Pause())

    def _follow(self, record: Application) -> Attempt:
        """Expect reports of the ranks of its latest start."""
        attempt = Attempt(record.starts, frozenset(record.placement), record.size, self.now())
        self.attempts[record.spec.name] = attempt
        return attempt

    def send(self, node: str, order: messages.ToManager) -> None:
        self._managers[node].put(order)

    def send_ranks(self, name: str, order: Order) -> None:
        for node in self.attempts[name].nodes:
            self.send(node, messages.RankOrder(name, order))

    def kill(self, name: str, reason: str, cancelled: bool = False) -> None:
        for node in self.attempts[name].nodes & self.joined.keys():
            self.send(node, messages.Kill(name, reason, cancelled))

    def look_again(self) -> None:
        """Call the scheduler after an input of its decisions was changed by a command."""
        self._place_again()  # a paused application may have missed that a node was lost
        self._schedule(Cause.ARRIVAL)

    @property
    def nodes(self) -> dict[str, Node]:
        return nodes_of(self.joined, self.settings, self._highest, self._lender.lent, self._kinds)

    # ---- applications

    def submit_now(self, job: Job) -> str:
        """Add a job if possible, and schedule. Returns what is wrong with it, or ""."""
        job, error = shortened(job, self.settings), ""
        if job.name in self.records:
            # A restarted submitter may submit it again.
            if job_of(self.records[job.name].spec) != job:
                error = f"there is an application {job.name!r} already"
        else:
            self._highest = max(self._highest, highest_of(job))
            self._kinds |= dict.fromkeys(job.speeds)
            devices: dict[str, tuple[int, ...]] | int = job.devices.count
            try:
                devices = devices_of(job, self.nodes, self.settings)
            except LackingError as lacking:
                error = str(lacking)
            self.records.submit(spec_of(job, devices), self.now(), curve=self.settings.guesses.get(job.name))
            if error:
                self.change(job.name, State.FAILED, error)
        self._schedule(Cause.ARRIVAL)
        return error

    def change(self, name: str, state: State, reason: str, **details: object) -> None:
        """Change the state of an application, or only its details."""
        self.records.change(name, state, self.now(), reason, **details)
        self.reasons[name] = reason

    def _reported(self, message: messages.Reported, attempt: Attempt) -> None:
        attempt.note(message.report, self.now())
        record = self.records[message.application]
        if record.state in (State.STARTING, State.RESUMING) and attempt.has_started:
            self.change(message.application, State.RUNNING, "all its ranks train")
        elif record.state is State.RESIZING and len(attempt.resized) >= attempt.size:
            self.change(message.application, State.RUNNING, "all its ranks have their workers")
        if isinstance(message.report, Progress):
            self._learning.setdefault(message.application, Learning()).observe(message.report)

    def _ended(self, ended: messages.Ended, attempt: Attempt) -> None:
        name = ended.application
        if attempt.end(ended, self.now()):
            for node in attempt.nodes - attempt.codes.keys():
                self.send(node, messages.Kill(name, ended.cause))
        if not attempt.is_over:
            return
        del self.attempts[name]
        progress = float(max(attempt.iteration, int(self.records[name].progress)))
        if attempt.all_left("finished"):
            self.change(name, State.FINISHED, "it has come to its end", progress=progress)
        elif attempt.cancelled or attempt.all_left("cancelled"):
            self.change(name, State.CANCELLED, "cancelled by a user", progress=progress)
        elif attempt.all_left("paused"):
            if self.records[name].state is not State.PAUSING:
                self.change(name, State.PAUSING, "its ranks have paused")
            self.change(name, State.PAUSED, "its checkpoint is on disk", progress=progress)
        elif attempt.ended_well and not attempt.has_reported and not attempt.cause:
            self.change(name, State.FINISHED, "its program has ended", progress=progress)
        else:
            self._failed(name, attempt, progress)
        self._schedule(Cause.DEPARTURE)

    def _failed(self, name: str, attempt: Attempt, progress: float) -> None:
        cause = attempt.cause or "its ranks ended before its end, and reported no error"
        self._failures[name] = self._failures.get(name, 0) + 1
        if attempt.killed and self._failures[name] <= self.settings.retries:
            self._put_back(name, cause, progress=progress)
        else:
            self.change(name, State.FAILED, cause, progress=progress)

    def _lose(self, name: str, reason: str) -> None:
        """End the remaining ranks of an application that lost ranks on a node, and queue it again."""
        if name in self.attempts:
            self.kill(name, reason)
            del self.attempts[name]
        self._put_back(name, reason)

    def _put_back(self, name: str, reason: str, **details: object) -> None:
        """Queue an application again that lost its ranks without a fault of its own."""
        record = self.records[name]
        state = State.PAUSED if record.held and record.state is State.PAUSING else State.QUEUED
        self.change(name, state, f"{reason}; it continues from its last checkpoint", **details)

    def _place_again(self) -> None:
        """Choose other nodes for waiting applications whose nodes are lost, or fail them if there are none."""
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
        if self._gather_until is None:
            for action in self._scheduler.decide(self.now(), self.records, self.nodes, cause):
                self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case actions.Launch():
                self._launch(action)
            case actions.Resize():
                self.resize(action.name, action.workers, action.away, action.reason)
            case actions.Pause():
                self.change(action.name, State.PAUSING, action.reason)
                self.send_ranks(action.name, Pause())
            case actions.Promote():
                self.change(action.name, self.records[action.name].state, action.reason, executed=0.0)
            case actions.Requeue():
                self._lose(action.name, action.reason)

    def _launch(self, action: actions.Launch) -> None:
        name, before = action.name, self.records[action.name]
        if action.kind != before.kind:
            self._learning.pop(name, None)  # what was measured is of another kind of devices
        self.change(name, action.state, action.reason, **action.details(before))
        record = self.records[name]
        self._follow(record)
        for node, launch in launches(record, self.joined, self.settings).items():
            self.send(node, launch)

    def resize(self, name: str, workers: int, away: Away, reason: str) -> None:
        """Set the workers per device of an application, some of them on other nodes."""
        self.change(name, State.RESIZING, reason, workers=workers, **self.records[name].moved_to(away))
        self.attempts[name].resized.clear()
        self._send_workers(self.records[name], reason)

    def _send_workers(self, record: Application, reason: str) -> None:
        name = record.spec.name
        for node in self.attempts[name].nodes:
            self.send(node, messages.RankOrder(name, Resize(record.workers, reason, names(record.away, node))))

    # ---- every second

    def _tick(self) -> None:
        now = self._ticked = self.now()
        if self._gather_until is not None:
            self._begin_if_gathered()
            return
        self._look_for_lost_nodes()
        for name, attempt in list(self.attempts.items()):
            if now - attempt.heard > self.settings.silence:
                self._note_silence(name, attempt)
                attempt.heard = now
            elif attempt.latest:
                self._pace.write(now, name, attempt.pace, self.records[name].workers)
        loads = any(each.state not in ENDED for each in self.records.values())
        for node, claim in self._lender.claims(self.nodes, loads):
            self.send(node, claim)
        self._look_at_curves()

    def _note_silence(self, name: str, attempt: Attempt) -> None:
        """End an application whose ranks report nothing any more."""
        record, reason = self.records[name], f"no rank has reported anything for {self.settings.silence:.0f} s"
        if job_of(record.spec).script and not attempt.has_reported:
            self.change(name, record.state, f"{reason}: its program has no session, or does not come to it")
            return
        attempt.cause = attempt.cause or reason
        self.kill(name, reason)

    def _look_for_lost_nodes(self) -> None:
        lost = absent(self.joined)
        for node in lost:
            del self.joined[node]
            self._lender.forget(node)
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
            curve = learning.news(sharers(record, self.records.values()))
            if curve is not None:
                curve = curve.scaled(1 / record.spec.speed(record.kind))
                progress = float(self.attempts[name].iteration)
                self.change(name, State.RUNNING, "its curve was measured", curve=curve, progress=progress)
                changed = True
        kinds = len({node.kind for node in self.nodes.values()})
        due = self._scheduler.next_time(self.now() - _TICK_S, self.records, kinds)
        if changed:
            self._schedule(Cause.DRIFT)
        elif due is not None and due <= self.now():
            self._schedule(Cause.DUE)
