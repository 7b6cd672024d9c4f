"""Programs that wait, for tests of the commands that inspect runs and end them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conftest import Site
from dragon import runs
from peers import await_that

__all__ = ["Program", "running"]


@dataclass
class Program:
    """A running program. `pids` are the process ids that it printed first."""

    process: subprocess.Popen[str]
    pids: dict[str, int]
    site: Site

    def ask(self, command: str) -> Any:
        """Return the JSON that `dragon ps` or `dragon doctor` prints for the program's run."""
        done = self.site.dragon(command, str(self.process.pid), "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @property
    def name(self) -> str:
        """The name of the run of the program."""
        return str(self.ask("ps")["run"]["run"])

    def folder(self, node: int = 0) -> Path:
        """The folder of the program's run on a node."""
        return Path(self.ask("ps")["run"]["nodes"][node]["folder"])


@contextlib.contextmanager
def running(site: Site, source: str, *options: str, name: str = "program.py", plain: bool = False) -> Iterator[Program]:
    """Start a program with `dragon` and `options`, or with Python alone; wait until it has printed process ids and its
    run is known."""
    program = site.write(source, name)
    process = site.start(sys.executable, *([] if plain else ["-m", "dragon", *options]), program)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=60)[1]
        # A program may be ahead of its agent, which registers the run.
        await_that(lambda: any(str(process.pid) in run.words for run in runs.find()), "the agent of the program")
        yield Program(process, json.loads(line), site)
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)
