"""The head of a torchloader cluster: starts its processes, prints events, and restarts the master."""

from __future__ import annotations

import base64
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dragon.commands import worded
from dragon.files import whole_file, write_bytes
from dragon.infrastructure.errors import DestroyedError, NodeLostError, ProcessError
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System, current
from dragon.native.process import Process
from dragon.native.queue import Queue
from torchloader.inputs.job import Job
from torchloader.service.contact import CONTACT, Contact
from torchloader.service.leading import DAMAGED, FAILED, lead
from torchloader.service.settings import LOG, PRELOAD, Settings
from torchloader.service.submitter import submit
from torchloader.service.telling import Teller
from torchloader.service.worker import end, work

__all__ = ["main"]

if os.environ.get(PRELOAD):
    # Every node's zygote imports the program, and this module with it. So the ranks that it forks, and their loading
    # workers, start with PyTorch imported.
    import torch  # noqa: F401

_POLL_S = 0.2
_RESTART_DELAY_S = 0.5
_NO_NODE = (NodeLostError, ProcessError, DestroyedError)
_MASTERS = 5  # masters that may end unexpectedly before the head gives up


class Head:
    """The parts of a cluster that survive a restart of the master."""

    def __init__(self, folder: Path, jobs: Sequence[Job]) -> None:
        self._folder = folder
        self._began = Settings.load(folder).began
        self._jobs = list(jobs)
        # The node of this process: the run ends with it.
        self._here = Policy(placement=Policy.Placement.HOST_NAME, host_name=current().hostname)
        self._inbox = Queue(0)
        self._managers: dict[str, Queue] = {}
        self._workers: dict[str, Process] = {}
        self._submitter: Process | None = None
        self._teller = Teller(folder / LOG)

    def run(self) -> int:
        """Run until the master has ended. Returns the exit code."""
        self._start_workers()
        try:
            self._make_contact()
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
                self._teller.tell()
                self._look_at_workers()
                if self._submitter is not None and self._submitter.returncode not in (0, None):
                    self._start_submitter()
                time.sleep(_POLL_S)
            self._teller.tell()
            if master.returncode in (0, FAILED):
                return 1 if master.returncode else 0
            if master.returncode == DAMAGED:
                return 1
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

    def _make_contact(self) -> None:
        """Write the master's address into the run's folder, which only its user can read, and which is removed with the
        run."""
        contact = Contact(base64.b64encode(self._inbox.serialize()).decode(), str(self._folder))
        with whole_file(Path(os.environ["DRAGON_RUN"]) / CONTACT) as unfinished:
            write_bytes(unfinished, msgspec.json.encode(contact))


def main(folder: Path) -> int:
    """Run the workload of a folder with settings.json and jobs.json. Returns the exit code, 1 if a job failed."""
    return Head(folder, Settings.jobs(folder)).run()
