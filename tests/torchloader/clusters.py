"""Run torchloader clusters for the tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conftest import Site

PROGRAMS = Path(__file__).parent / "programs"
TRAINER = PROGRAMS / "trainer.py"
TORCHLOADER = (sys.executable, "-m", "torchloader")


def toml(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


@dataclass
class Cluster:
    """A running workload, and the events of its log."""

    site: Site
    folder: Path = field(init=False)
    process: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        self.folder = self.site.folder / "run"

    def job(self, name: str, *arguments: object, **fields: Any) -> str:
        """Return a job that runs the trainer, as TOML."""
        told = {
            "script": str(TRAINER),
            "arguments": [str(each) for each in arguments],
            "batch": 4,
            "workers": 2,
            **fields,
        }
        told.setdefault("output_folder", "out")
        told.setdefault("iterations", arguments[0] if arguments else 1)
        lines = "\n".join(f"{key} = {toml(value)}" for key, value in told.items())
        return f'[[jobs]]\nname = "{name}"\n{lines}\n'

    def start(self, *jobs: str, options: tuple[str, ...] = ("--device", "cpu", "--cores", "8")) -> None:
        """Start a workload of these jobs."""
        path = self.site.write("\n".join(jobs), "jobs.toml")
        self.process = self.site.start(*TORCHLOADER, "run", str(path), "--folder", str(self.folder), *options)

    def close(self) -> None:
        """End the workload if a test has left it running."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.communicate(timeout=30)

    def interrupt(self) -> None:
        """Interrupt the workload, as Ctrl-C does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)

    def end(self, timeout: float = 60) -> int:
        """Wait until the workload ends; return the exit code."""
        assert self.process is not None
        self.out, self.err = self.process.communicate(timeout=timeout)
        return self.process.returncode

    def events(self) -> list[dict[str, Any]]:
        """Return the events that the log has so far."""
        path = self.folder / "events.jsonl"
        if not path.exists():
            return []
        content = path.read_text()
        return [json.loads(line) for line in content[: content.rfind("\n") + 1].splitlines()]

    def states(self, name: str) -> list[str]:
        """Return the states through which an application went."""
        changes = [event["to"] for event in self.events() if event["application"] == name]
        return [after for before, after in zip([None, *changes], changes, strict=False) if after != before]

    def reason(self, name: str) -> str:
        """Return the reason of an application's last change of state."""
        return str([event["reason"] for event in self.events() if event["application"] == name][-1])

    def until(self, condition: Callable[[], bool], timeout: float = 40) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + timeout
        assert self.process is not None
        while not condition():
            assert time.monotonic() < end, self.events()[-8:]
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)

    def until_state(self, name: str, state: str) -> None:
        """Wait until an application reaches a state."""
        self.until(lambda: self.states(name)[-1:] == [state])

    def until_iteration(self, name: str, iteration: int) -> None:
        """Wait until the first rank of an application has done `count` iterations."""
        place = self.site.folder / "out" / f"place-{name}-0.json"
        self.until(
            lambda: place.exists() and place.read_text().endswith("]") and json.loads(place.read_text())[1] >= iteration
        )

    def samples(self, name: str, rank: int = 0) -> list[int]:
        """Return the samples that a rank was given to train on, in order."""
        return list(map(int, (self.site.folder / "out" / f"samples-{name}-{rank}.txt").read_text().split()))

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command for this cluster."""
        which = ("--run", str(self.process.pid)) if self.process is not None else ()
        return self.site.run(*TORCHLOADER, *words, *which)

    def _run(self) -> dict[str, Any]:
        runs = json.loads(self.site.dragon("ps", "--json").stdout)
        mine: dict[str, Any] = next(run for run in runs if str(self.folder) in run["command"])
        return mine

    def processes(self) -> dict[str, int]:
        """Return the process ids by name, of all nodes."""
        told = json.loads(self.site.dragon("ps", self._run()["run"], "--json").stdout)
        return {each["name"]: each["pid"] for each in told["processes"]}

    def kill_agent(self, node: int) -> None:
        """Kill the agent of a simulated node."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            agents = {each["node"]: each["agent"] for each in self._run()["nodes"]}
            if node in agents:
                os.kill(agents[node], signal.SIGKILL)
                return
        raise AssertionError(f"the run tells of no node {node}")

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one of the cluster's processes."""
        os.kill(self.processes()[name], number)

    def kill(self, name: str) -> None:
        """Kill one of the cluster's processes."""
        self.signal(name, signal.SIGKILL)

    def go(self) -> None:
        """Let the waiting processes continue."""
        (self.site.folder / "out").mkdir(exist_ok=True)
        (self.site.folder / "out" / "go").touch()
