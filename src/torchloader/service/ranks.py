"""The ranks of one application on one node."""

from __future__ import annotations

import base64
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty

from dragon.infrastructure.policy import Policy
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.signals import how_ended
from torchloader.service.messages import Ended, Launch, Reported
from torchloader.training import protocol


def train(arguments: Sequence[str]) -> None:
    """Train as `python -m torchloader.training.train` would. Ends the process."""
    from torchloader.training.train import main

    sys.exit(main(arguments))


_POLL_S = 0.2  # seconds between two checks of the processes, while no rank reports anything
_FOR_OWN_END = 10.0  # seconds between a rank's failure and the end of the others
_FOR_WORKERS = 3.0  # seconds between a rank's end and that of its children
_TAIL = 2000  # bytes of a rank's last output


class Ranks:
    """Starts ranks and follows them to their end. run() needs a thread of its own; other methods do not."""

    def __init__(self, launch: Launch, node: str, master: Queue) -> None:
        self._launch, self._node, self._master = launch, node, master
        self.attempt = launch.attempt
        self._reports = Queue(0)
        self._orders = {rank: Queue(0) for rank in launch.devices}
        self._processes: dict[int, Process] = {}
        self._ended = Ended(launch.application, launch.attempt, node)
        self._reason = ""  # of kill()
        self._stopped: set[int] = set()  # ranks that were ended from here
        self._end_at: float | None = None

    def send(self, order: protocol.Order) -> None:
        self._ended.cancelled |= isinstance(order, protocol.Cancel)
        for place, queue in enumerate(self._orders.values()):
            own = order.for_rank(place, len(self._orders)) if isinstance(order, protocol.Resize) else order
            queue.put(protocol.encode(own))

    def kill(self, reason: str, cancelled: bool = False) -> None:
        """End all ranks; `cancelled` if a user requested it."""
        self._reason = self._reason or reason
        self._ended.cancelled |= cancelled
        self._stop_ranks()

    def run(self) -> Ended:
        """Start the ranks, and forward their reports until all have ended. Returns how they ended."""
        ended = self._ended
        try:
            Path(self._launch.folder).mkdir(parents=True, exist_ok=True)
            for rank in self._launch.devices:
                if not self._reason:
                    self._processes[rank] = self._start(rank)
        except Exception as error:  # any error fails only this job
            ended.cause = f"could not be started on {self._node}: {type(error).__name__}: {error}"
            self.kill(ended.cause)
        while len(ended.codes) < len(self._processes):
            self._listen(_POLL_S)
            self._look()
        while self._listen(0):
            pass
        ended.cause = ended.cause or self._reason
        return ended

    def end_what_ranks_started(self) -> None:
        """End the children of ended ranks, after 3 s: loading workers that hang in the dataset."""
        time.sleep(_FOR_WORKERS)
        for process in self._processes.values():
            end_children(process)

    def _start(self, rank: int) -> Process:
        launch, beside, device = self._launch, len(self._launch.devices), self._launch.devices[rank]
        local = list(launch.devices).index(rank)
        environment = {
            "TORCHLOADER_NICE": "10",  # of loading workers: trainers that wait for a core go first
            **launch.environment,
            "RANK": str(rank),
            "WORLD_SIZE": str(launch.world_size),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(beside),
            "MASTER_ADDR": launch.master,
            "MASTER_PORT": str(launch.port),
            "TORCHLOADER_APPLICATION": launch.application,
            "TORCHLOADER_FOLDER": launch.folder,
            "TORCHLOADER_WORKERS": str(launch.workers),
            "TORCHLOADER_ORDERS": base64.b64encode(self._orders[rank].serialize()).decode(),
            "TORCHLOADER_REPORTS": base64.b64encode(self._reports.serialize()).decode(),
        }
        if launch.away is not None:
            first = protocol.Resize(launch.workers, away=launch.away).for_rank(local, beside)
            environment["TORCHLOADER_WORKERS_AWAY"] = ",".join(first.away)
        if device is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(device)
            environment["LOCAL_RANK"] = "0"  # of the devices that it sees
        output = str(self._output(rank))
        process = Process(
            train if launch.ours else launch.command[0],
            (launch.command,) if launch.ours else list(launch.command[1:]),
            env=environment,
            ident=f"{launch.application}-rank{rank}-{launch.attempt}",
            stdout=output,
            stderr=output,
            policy=Policy(placement=Policy.Placement.HOST_NAME, host_name=self._node),
        )
        process.start()
        return process

    def _output(self, rank: int) -> Path:
        return Path(self._launch.folder) / f"{self._launch.application}-rank{rank}.log"

    def _listen(self, timeout: float) -> bool:
        try:
            data = self._reports.get(timeout=timeout) if timeout else self._reports.get_nowait()
        except Empty:
            return False
        report, ended = protocol.decode_report(data), self._ended
        if isinstance(report, protocol.Leaves):
            ended.left[report.rank] = report
        elif isinstance(report, protocol.Failed) and not ended.cause:
            ended.cause = f"rank {report.rank} on {self._node} failed: {report.text}"
        self._master.put(Reported(ended.application, ended.attempt, report))
        return True

    def _look(self) -> None:
        for number, process in self._processes.items():
            code = None if number in self._ended.codes else process.returncode
            if code is None:
                continue
            self._ended.codes[number] = code
            if code != 0 and number not in self._stopped:
                self._note_failure(number, code)
        late = self._end_at is not None and time.monotonic() > self._end_at
        if late or self._reason:
            # The others wait for it in a collective operation; or one was being started while kill() ended all.
            self._stop_ranks()

    def _note_failure(self, rank: int, code: int) -> None:
        while self._listen(0):
            pass  # it may have reported why
        # Ranks that fail because another one was killed may be seen to fail before it.
        if not self._ended.cause or (code < 0 and not self._ended.killed):
            self._ended.cause = f"rank {rank} on {self._node} ended with {how_ended(code)}{self._tail(rank)}"
        self._ended.killed |= code < 0
        self._end_at = self._end_at or time.monotonic() + _FOR_OWN_END

    def _stop_ranks(self) -> None:
        for number, process in list(self._processes.items()):
            if process.returncode is None:
                self._stopped.add(number)
                process.kill()

    def _tail(self, rank: int) -> str:
        try:
            with open(self._output(rank), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
                text = file.read().decode(errors="replace").strip()
        except OSError as error:
            return f"; what it wrote cannot be read: {error}"
        return f"; it last wrote:\n{text}" if text else ""


def end_children(process: Process) -> None:
    for child in process.children():
        child.kill()
