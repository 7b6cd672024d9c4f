"""Runs the scheduler in a discrete-event simulation. The same jobs, nodes and scheduler give the same results."""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torchloader.prediction.curve import Curve
from torchloader.scheduling import application as actions
from torchloader.scheduling.application import Action, Application, Cause, Node, State
from torchloader.scheduling.log import Event, Records
from torchloader.scheduling.placement import devices_by_kind, shared
from torchloader.scheduling.scheduler import Scheduler
from torchloader.simulation.result import JobResult, Moment, Result
from torchloader.simulation.workload import Job

# Of Student's distribution, for 95 % on both sides, by degrees of freedom.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with the half width of its 95 % confidence interval; None for a single value."""

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        mean, degrees = statistics.fmean(values), len(values) - 1
        if not degrees:
            return cls(mean, None)
        quantile = _T[degrees - 1] if degrees <= len(_T) else 2.09
        return cls(mean, quantile * statistics.stdev(values, mean) / math.sqrt(len(values)))


@dataclass(frozen=True, slots=True)
class Row:
    """A policy's results over all workloads."""

    policy: str  # its name
    completion: Interval  # mean seconds, as in `Result`
    makespan: Interval
    busy: Interval  # the fraction of the time for which devices were held in which they computed
    lost: Interval  # hours for which devices were held and did not compute
    unfair: Interval  # the largest finish-time fairness of a workload's jobs, as in `Result.unfairness`
    resizes: float  # changes of workers per job
    shorter: Interval  # by which fraction completion is below that of the reference policy, workload by workload
    sooner: Interval  # the same of the makespan
    worst: float  # the smallest of `shorter` over the workloads


def compare(results: Sequence[Sequence[Result]], against: int, devices: int) -> list[Row]:
    rows = []
    for own in results:
        pairs = list(zip(own, results[against], strict=True))
        shorter = [1 - ours.mean_completion / theirs.mean_completion for ours, theirs in pairs]
        rows.append(
            Row(
                own[0].policy,
                Interval.of([each.mean_completion for each in own]),
                Interval.of([each.makespan for each in own]),
                Interval.of([each.busy for each in own]),
                Interval.of([each.lost_device_hours for each in own]),
                Interval.of([max(each.unfairness(devices)) for each in own]),
                sum(job.resizes for each in own for job in each.jobs) / sum(len(each.jobs) for each in own),
                Interval.of(shorter),
                Interval.of([1 - ours.makespan / theirs.makespan for ours, theirs in pairs]),
                min(shorter),
            )
        )
    return rows


def table(rows: Sequence[Row], against: str) -> str:
    header = ["policy", "completion, s", "makespan, s", "busy, %", "GPU h lost", "unfair", "changes a job"]
    lines = [[*header, "completion", "worst", "makespan"]]
    for row in rows:
        means = [_number(row.completion), _number(row.makespan), _number(row.busy, 100), _number(row.lost)]
        against_it = [_percent(row.shorter), _signed(-row.worst), _percent(row.sooner)]
        against_it = ["-"] * 3 if row.policy == against else against_it
        lines.append([row.policy, *means, f"{row.unfair.mean:.1f}", f"{row.resizes:.1f}", *against_it])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
    )


def _number(interval: Interval, times: float = 1.0) -> str:
    mean = round(interval.mean * times) + 0  # + 0, so that there is no -0
    return f"{mean:,}" + ("" if interval.half is None else f" ± {interval.half * times:,.0f}")


def _signed(part: float) -> str:
    return f"{round(100 * part, 1) + 0.0:+.1f} %"  # + 0.0, so that there is no -0.0


def _percent(interval: Interval) -> str:
    return _signed(-interval.mean) + ("" if interval.half is None else f" ± {100 * interval.half:.1f}")


_CLOSE = 1e-6  # iterations: a job that is so near the end of a stage is in the next one


def simulate(
    jobs: Sequence[Job],
    nodes: Mapping[str, Node],
    scheduler: Scheduler,
    *,
    stop: float = 0.0,
    start: float = 0.0,
    learn: float = 0.0,
    progress: Callable[[int], object] = lambda ended: None,
) -> Result:
    """Simulate jobs to their ends. Between events a job trains at the rate that its curve gives for its workers and the
    kind of its devices. A job that is started, or whose workers are changed, stands still for a while."""
    return _Simulation(jobs, nodes, scheduler, (stop, start, learn), progress).run()


class _Running:
    """A job in the simulation: its result so far, its progress and its rate."""

    def __init__(self, job: Job, result: JobResult) -> None:
        self.job, self.result = job, result
        self.done = self.rate = 0.0  # iterations, and iterations per second
        self.devices = 0  # that it holds
        self.busy = 0.0  # the fraction of its devices' time in which they compute now
        self.is_started = False
        self.paused: float | None = None  # since when, in seconds; None if it is not paused
        self.noted: tuple[int, float] = (0, 0.0)  # workers and rate of the last moment

    @property
    def left(self) -> float:
        return self.job.spec.iterations - self.done

    @property
    def stage(self) -> float:
        return min(self.left, self.job.stage(self.done + _CLOSE) - self.done)

    def train(self, record: Application, curve: Curve) -> None:
        self.devices = record.size if record.holds else 0
        self.rate, self.busy = 0.0, 0.0
        if record.state is State.RUNNING:
            self.rate, self.busy = self.job.rate(record, curve, self.done + _CLOSE)

    def advance(self, now: float, time: float) -> None:
        # A job that ends within the tolerance ends now: otherwise rounding could leave an event for a tiny rest.
        ends = self.rate > 0 and now + self.left / self.rate <= time + 1e-9
        self.done = float(self.job.spec.iterations) if ends else self.done + self.rate * (time - now)
        result, computed = self.result, self.busy * (time - now)
        result.computed += computed
        result.worked += computed * self.devices
        result.held += self.devices * (time - now)


class _Simulation:
    def __init__(
        self,
        jobs: Sequence[Job],
        nodes: Mapping[str, Node],
        scheduler: Scheduler,
        seconds: tuple[float, float, float],
        progress: Callable[[int], object],
    ) -> None:
        """`seconds` are stop, start and learn."""
        self._nodes, self._scheduler, self._progress = nodes, scheduler, progress
        self._kinds = devices_by_kind(nodes)
        self._stop, self._begin, self._learn = seconds
        self._arrivals = sorted(jobs, key=lambda job: (job.spec.arrival, job.spec.name), reverse=True)
        self._events: list[Event] = []
        self._moments: list[Moment] = []
        self._records = Records(self._events.append)
        self._results: list[JobResult] = []
        self._alive: dict[str, _Running] = {}
        self._ready: list[tuple[float, str]] = []  # when jobs that stand still continue
        self._learning: list[tuple[float, str]] = []  # when the curves of started jobs are known
        self._due: float | None = None
        self._idle = -1  # the number of events when nothing but the order could change, for the last time
        self._missed: Cause | None = None  # what happened while a job stood still, and could not be changed
        self._now = 0.0

    def run(self) -> Result:
        while self._arrivals or self._alive:
            time = self._next()
            for each in self._alive.values():
                each.advance(self._now, time)
            self._now = time
            causes = [*self._finish(), *self._go_on(), *self._arrive(), *self._measure()]
            if self._due is not None and self._due <= self._now:
                causes.append(Cause.DUE)
            for cause in dict.fromkeys(causes):
                self._decide(cause)
            self._rates()
        return Result(self._scheduler.name, self._results, self._moments, self._events)

    def _next(self) -> float:
        """Return the time of the next event. Raises ValueError if no job can proceed."""
        times = [self._now + max(0.0, each.stage) / each.rate for each in self._alive.values() if each.rate > 0]
        times += [self._ready[0][0]] if self._ready else []
        times += [self._arrivals[-1].spec.arrival] if self._arrivals else []
        times += [self._learning[0][0]] if self._learning else []
        if not times:
            # A change of the order can help a job that waits, but not again and again.
            times += [self._due] if self._due is not None and self._idle < len(self._events) else []
            self._idle = len(self._events)
        elif self._due is not None:
            times.append(self._due)
        if not times:
            raise ValueError(self._stuck())
        return max(self._now, min(times))

    def _stuck(self) -> str:
        """Return why the first job that is left can never start."""
        name, stuck = next((name, self._records[name].spec) for name in self._alive)
        of = f" of kind {' or '.join(stuck.speeds)}" if stuck.speeds else ""
        there = (
            f"{node}: {len(each.devices)}{f' {each.kind}' if each.kind else ''} with {each.cores} cores"
            for node, each in self._nodes.items()
        )
        return (
            f"job {name!r} can never start: it wants {stuck.devices} device(s){of} with at least {stuck.minimum} "
            f"worker(s) each, and the nodes have {', '.join(there)}"
        )

    def _finish(self) -> list[Cause]:
        ended = [name for name, each in self._alive.items() if each.left <= 0]
        for name in ended:
            each = self._alive.pop(name)
            each.result.finished, each.rate = self._now, 0.0
            self._records.change(name, State.FINISHED, self._now, "done", progress=each.done)
            self._note(name, each, 0)
            self._progress(len(self._results) - len(self._alive))
        return [Cause.DEPARTURE] if ended else []

    def _go_on(self) -> list[Cause]:
        ready = []
        while self._ready and self._ready[0][0] <= self._now:
            _, name = heapq.heappop(self._ready)
            self._records.change(name, State.RUNNING, self._now, "ready")
            ready.append(name)
        if not ready or self._missed is None:
            return []
        missed, self._missed = self._missed, None
        return [missed]

    def _arrive(self) -> list[Cause]:
        came = False
        while self._arrivals and self._arrivals[-1].spec.arrival <= self._now:
            job = self._arrivals.pop()
            came = True
            self._records.submit(job.spec, self._now, curve=None if self._learn else job.believed or job.curve)
            self._results.append(self._result(job))
            self._alive[job.spec.name] = _Running(job, self._results[-1])
        return [Cause.ARRIVAL] if came else []

    def _measure(self) -> list[Cause]:
        measured = []
        while self._learning and self._learning[0][0] <= self._now:
            _, name = heapq.heappop(self._learning)
            if name in self._alive:
                job = self._alive[name].job
                state, curve = self._records[name].state, job.believed or job.curve
                self._records.change(name, state, self._now, "its curve was measured", curve=curve)
                measured.append(name)
        return [Cause.DRIFT] if measured else []

    def _decide(self, cause: Cause) -> None:
        known = {name: replace(self._records[name], progress=each.done) for name, each in self._alive.items()}
        if any(each.holds and each.state is not State.RUNNING for each in known.values()):
            self._missed = cause
        decided = self._scheduler.decide(self._now, known, self._nodes, cause)
        for action in decided:
            self._do(action)
        if any(isinstance(action, actions.Pause) for action in decided):
            self._decide(Cause.DEPARTURE)  # as the master does when one has paused
            return
        alive = {name: self._records[name] for name in self._alive}
        self._due = self._scheduler.next_time(self._now, alive, len(self._kinds))

    def _do(self, action: Action) -> None:
        each, record = self._alive[action.name], self._records[action.name]
        match action:
            case actions.Launch():
                if not each.is_started:
                    each.is_started, each.result.started = True, self._now
                    if self._learn:
                        heapq.heappush(self._learning, (self._now + self._begin + self._learn, action.name))
                each.result.paused += 0.0 if each.paused is None else self._now - each.paused
                each.paused = None
                self._change(action, action.state, **action.details(record))
                self._stand(action.name, self._begin)
            case actions.Resize():
                self._change(action, State.RESIZING, workers=action.workers, **record.moved_to(action.away))
                each.result.resizes += 1
                each.result.stopped += self._stop
                self._stand(action.name, self._stop)
            case actions.Pause():
                self._change(action, State.PAUSING)
                self._change(action, State.PAUSED)
                each.paused = self._now
            case actions.Promote():
                self._change(action, record.state, executed=0.0)
            case actions.Requeue():
                self._change(action, State.QUEUED)

    def _change(self, action: Action, state: State, **details: object) -> None:
        done = self._alive[action.name].done
        self._records.change(action.name, state, self._now, action.reason, progress=done, **details)

    def _stand(self, name: str, seconds: float) -> None:
        if seconds > 0:
            heapq.heappush(self._ready, (self._now + seconds, name))
        else:
            self._records.change(name, State.RUNNING, self._now, "ready")

    def _rates(self) -> None:
        holding = {name: self._records[name] for name in self._alive if self._records[name].holds}
        curves = shared(
            {
                name: (self._alive[name].job.curve.scaled(each.spec.speed(each.kind)), each.placement)
                for name, each in holding.items()
            }
        )
        for name, each in self._alive.items():
            record = self._records[name]
            each.train(record, curves.get(name, each.job.curve))
            self._note(name, each, record.workers)

    def _note(self, name: str, each: _Running, workers: int) -> None:
        if (workers, each.rate) != each.noted:
            self._moments.append(Moment(self._now, name, workers, each.rate * each.job.spec.batch))
            each.noted = workers, each.rate

    def _result(self, job: Job) -> JobResult:
        spec = job.spec
        fastest = max((spec.speed(kind) for kind in self._kinds if spec.runs_on(kind)), default=1.0)
        samples = spec.iterations * spec.batch
        times = spec.arrival, spec.arrival, 0.0, job.shortest / fastest
        return JobResult(spec.name, spec.arch, spec.size, *times, samples, 0, 0.0)
