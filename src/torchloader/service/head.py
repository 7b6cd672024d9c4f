"""The head of a torchloader cluster: starts and submits to its processes, prints events, and restarts the master."""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Empty
from typing import assert_never

import msgspec

from dragon.commands import discard_stdout, worded
from dragon.files import whole_file, write_bytes
from dragon.infrastructure.errors import DestroyedError, NodeLostError, ProcessError
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System, current
from dragon.native.process import Process
from dragon.native.queue import Queue
from torchloader.inputs.job import Job
from torchloader.scheduling.log import Event, FullError, LogError
from torchloader.service import messages
from torchloader.service.commands import reply
from torchloader.service.lending import Share
from torchloader.service.master import Master
from torchloader.service.placing import model
from torchloader.service.ranks import Ranks, end_children
from torchloader.service.settings import LOG, PRELOAD, Settings


def manage(inbox: Queue, master: Queue) -> None:
    """Run the application master of this node. Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front end's to answer
    ApplicationMaster(inbox, master).run()


class ApplicationMaster:
    """Takes orders from its inbox. Each application has a thread that listens to its ranks."""

    def __init__(self, inbox: Queue, master: Queue) -> None:
        self._inbox, self._master = inbox, master
        self._ranks: dict[str, Ranks] = {}
        self._ended: dict[str, messages.Ended] = {}
        self._node = current()
        self._share = Share(self._node.hostname)
        self._incarnation = secrets.token_hex(8)

    def run(self) -> None:
        self._introduce()
        while True:
            if (granted := self._share.news()) is not None:
                self._master.put(granted)
            try:
                order: messages.ToManager = self._inbox.get(timeout=1.0)
            except Empty:
                continue
            match order:
                case messages.Introduce():
                    self._introduce()
                case messages.Launch():
                    ranks = self._ranks[order.application] = Ranks(order, self._node.hostname, self._master)
                    self._ended.pop(order.application, None)
                    threading.Thread(target=self._follow, args=(ranks,), name=order.application, daemon=True).start()
                case messages.RankOrder():
                    with contextlib.suppress(KeyError):  # it has just ended, and the master gets Ended
                        self._ranks[order.application].send(order.order)
                case messages.Kill():
                    with contextlib.suppress(KeyError):
                        self._ranks[order.application].kill(order.reason, order.cancelled)
                case messages.Claim():
                    self._master.put(self._share.claim(order))
                case _:
                    assert_never(order)

    def _introduce(self) -> None:
        node = self._node
        # In this order: what ends meanwhile is reported twice rather than not at all.
        runs = {name: ranks.attempt for name, ranks in list(self._ranks.items())}, tuple(self._ended.values())
        gpus = tuple(int(gpu) for gpu in node.gpus or ())
        address = next(iter(node.ip), "127.0.0.1").partition(":")[0]
        hardware = address, node.num_cpus, gpus, node.physical_mem
        gpu = model() if gpus else ""
        self._master.put(messages.Joined(node.hostname, self._incarnation, *hardware, *runs, gpu))

    def _follow(self, ranks: Ranks) -> None:
        """Follow ranks until they have ended, and report that to the master."""
        ended = ranks.run()
        if self._ranks.get(ended.application) is ranks:
            # Kept before it is reported, since the master may be killed before it has handled the message.
            self._ended[ended.application] = ended
            del self._ranks[ended.application]
        self._master.put(ended)
        ranks.end_what_ranks_started()


class EventPrinter:
    """Follows a log. If stdout cannot be written any more, this is reported on stderr once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0

    def print_new(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            lines = file.read()
        whole = lines.rfind(b"\n") + 1
        self._at += whole
        try:
            for line in lines[:whole].splitlines():
                print(described(msgspec.json.decode(line, type=Event)), flush=True)
        except OSError as error:
            # The reader of stdout has ended, or the disk of its file is full; jobs continue.
            discard_stdout()
            text = f"stdout cannot be written: {error.strerror}; what happens is in {self._path}"
            with contextlib.suppress(OSError):  # stderr may go to the same place
                print(f"torchloader: {text}", file=sys.stderr, flush=True)


def described(event: Event) -> str:
    change = event.after if event.before in (None, event.after) else f"{event.before} → {event.after}"
    details, what = event.details, [event.reason]
    if details.placement is not None:
        what.append("on " + ", ".join(f"{node} {list(devices)}" for node, devices in details.placement.items()))
    if details.workers is not None:
        what.append(f"{details.workers} loading workers per device")
    if details.away is not None:
        others = sorted({node for away in details.away.values() for node in away})
        what.append(f"some of them on {', '.join(others)}" if others else "all of them on its own nodes")
    if details.curve is not None:
        curve = details.curve
        what.append(f"computes {curve.ceiling:.0f} samples/s, a worker loads {curve.loading(1):.0f}")
    return f"{event.time:8.1f} s  {event.application:<20} {change}: {'; '.join(what)}"


FAILED, DAMAGED = 10, 11  # exit codes that an uncaught exception does not give


def lead(inbox: Queue, managers: Mapping[str, Queue], settings: Settings) -> None:
    """Run the master until all applications of the workload have ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        sys.exit(0 if Master(inbox, managers, settings, reply).run() else FAILED)
    except (LogError, BlockingIOError, FullError) as error:
        print(f"torchloader: {worded(error)}", file=sys.stderr, flush=True)
        sys.exit(DAMAGED if isinstance(error, LogError) else 1)


def work(inbox: Queue, master: Queue) -> None:
    """Run the worker of this node. Never returns. Each new application master introduces itself to the master."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name = current().hostname
    here = Policy(placement=Policy.Placement.HOST_NAME, host_name=name)
    while True:
        process = Process(manage, (inbox, master), ident=f"application master on {name}", policy=here)
        process.start()
        process.join()
        end(process)
        time.sleep(_RESTART_DELAY_S)


def end(manager: Process) -> None:
    """End an application master, if it is alive, and the ranks that it started, which no process follows any more."""
    if manager.returncode is None:
        manager.kill()
        manager.join()
    for rank in manager.children():
        rank.kill()
        end_children(rank)


def submit(jobs: Sequence[Job], began: float, master: Queue) -> None:
    """Put each job into the inbox `job.arrival` seconds after `began` (Unix time), and report that these were all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for job in sorted(jobs, key=lambda each: each.arrival):
        time.sleep(max(0.0, began + job.arrival - time.time()))
        master.put(messages.Submitted(job))
    master.put(messages.AllSubmitted(frozenset(job.name for job in jobs)))


if os.environ.get(PRELOAD):
    # Every node's zygote imports the program, and this module with it. So the ranks that it forks, and their loading
    # workers, start with PyTorch imported.
    import torch  # noqa: F401

_POLL_S = 0.2
_RESTART_DELAY_S = 0.5  # so that a process that cannot start does not use up the node's time
_NO_NODE = (NodeLostError, ProcessError, DestroyedError)
_MASTERS = 5  # masters that may end unexpectedly before the head gives up


class Head:
    """The parts of a cluster that survive a restart of the master."""

    def __init__(self, folder: Path, jobs: Sequence[Job]) -> None:
        self._folder, self._began, self._jobs = folder, Settings.load(folder).began, list(jobs)
        # The node of this process: the run ends with it.
        self._here = Policy(placement=Policy.Placement.HOST_NAME, host_name=current().hostname)
        self._inbox = Queue(0)
        self._managers: dict[str, Queue] = {}
        self._workers: dict[str, Process] = {}
        self._submitter: Process | None = None
        self._events = EventPrinter(folder / LOG)

    def run(self) -> int:
        self._start_workers()
        try:
            # The master's address, which only the user can read.
            contact = messages.Contact(base64.b64encode(self._inbox.serialize()).decode(), str(self._folder))
            with whole_file(Path(os.environ["DRAGON_RUN"]) / messages.CONTACT) as unfinished:
                write_bytes(unfinished, msgspec.json.encode(contact))
        except OSError as error:  # the disk of the run's folder is full
            print(f"torchloader: {worded(error)}", file=sys.stderr, flush=True)
            return 1
        for left in reversed(range(_MASTERS)):
            settings = Settings.load(self._folder)  # a master before this one may have changed them
            master = Process(lead, (self._inbox, self._managers, settings), ident="master", policy=self._here)
            master.start()
            # The submitter may submit all jobs again: the master ignores those that it has.
            self._start_submitter()
            while master.is_alive:
                self._events.print_new()
                self._look_at_workers()
                if self._submitter is not None and self._submitter.returncode not in (0, None):
                    self._start_submitter()
                time.sleep(_POLL_S)
            self._events.print_new()
            if master.returncode in (0, FAILED, DAMAGED):
                return 1 if master.returncode else 0
            again = "restarting it" if left else f"giving up after {_MASTERS} attempts"
            print(f"torchloader: the master exited with code {master.returncode}; {again}", file=sys.stderr, flush=True)
            time.sleep(_RESTART_DELAY_S)
        return 1

    def _start_workers(self) -> None:
        for there in System().hostname_policies():
            inbox = Queue(0)
            try:
                self._start_worker(there.host_name, inbox)
            except _NO_NODE as error:
                # The run has lost the node; jobs that need it fail with an error that names it.
                print(f"torchloader: {there.host_name} is left out: {error}", file=sys.stderr, flush=True)
                continue
            self._managers[there.host_name] = inbox

    def _start_worker(self, name: str, inbox: Queue) -> None:
        there = Policy(placement=Policy.Placement.HOST_NAME, host_name=name)
        worker = Process(work, (inbox, self._inbox), ident=f"worker on {name}", policy=there)
        worker.start()
        self._workers[name] = worker

    def _look_at_workers(self) -> None:
        """Restart workers that have ended, after ending what they had started."""
        for name, worker in list(self._workers.items()):
            try:
                if worker.returncode is not None:
                    for manager in worker.children():
                        end(manager)
                    self._start_worker(name, self._managers[name])
            except _NO_NODE:
                del self._workers[name]  # with its node, as the master finds

    def _start_submitter(self) -> None:
        if self._submitter is not None:
            self._submitter.kill()
            self._submitter.join()
        self._submitter = Process(submit, (self._jobs, self._began, self._inbox), ident="submitter", policy=self._here)
        self._submitter.start()


def main(folder: Path) -> int:
    """Run the workload of a folder with settings.json and jobs.json. Returns the exit code, 1 if a job failed."""
    return Head(folder, Settings.jobs(folder)).run()
