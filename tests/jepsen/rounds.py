"""One run of the clients with faults, and its result."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from conftest import Site
from jepsen.checker import Fault, check, reads_that_go_back, stale_reads, without_reads
from jepsen.history import Operation, gathered, write
from jepsen.nemesis import Nemesis
from peers.ssh import SshHosts

__all__ = ["Round", "judged", "round_of"]

CLIENTS = Path(__file__).with_name("clients.py")
QUIET = 3.0  # seconds for which clients continue after all faults are over
ENDING = 30.0  # maximum seconds until nothing of a run is left
LONGEST = 150.0  # maximum seconds for the rest: timeouts of clients that were unreachable, and reading everything


@dataclass
class Round:
    """The faults of a round, and the violations found. `stale` are reads that lag behind, if they are allowed to."""

    operations: list[Operation]
    done: list[tuple[int, str]]
    missing: set[str]
    faults: list[Fault]
    stale: list[Fault]
    said: str
    history: Path

    def summary(self) -> str:
        unknown = sum(operation.ended is None for operation in self.operations)
        begun = [what for _, what in self.done if not what.startswith("end of")]
        return (
            f"{len(self.operations)} operations ({unknown} of unknown outcome), {len(begun)} faults, "
            f"{len(self.faults)} violations"
        )

    def unknown(self) -> Counter[str]:
        """Count the reasons for unknown outcomes."""
        errors = [operation.error for operation in self.operations if operation.ended is None]
        return Counter(error.partition(":")[0] or "its process was killed" for error in errors)


def round_of(hosts: SshHosts, site: Site, folder: Path, seed: str, seconds: float, reads: str) -> Round:
    """Run clients with faults for `seconds`, and check their history. `folder` receives it."""
    folder.mkdir(parents=True)
    run = hosts.start(site, "--no-label", CLIENTS, folder, seed, reads)
    nemesis = Nemesis(hosts.lan, folder, seed, run.pid)
    assert run.stdout is not None
    faults = []
    if run.stdout.readline() == "begun\n":
        time.sleep(1)
        nemesis.work(seconds)
        time.sleep(QUIET)
    (folder / "stop").touch()
    try:
        out, err = run.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        site.kill()
        out, err = run.communicate(timeout=60)
        faults.append(Fault("program", f"it did not end within {LONGEST:g} s after all was mended"))
    if out != "looked at all\n":
        faults.append(Fault("program", f"it did not look at all; it ended with {run.returncode}"))
    nemesis.clean_up()
    left = what_is_left(hosts)
    if left:
        faults.append(Fault("hosts", "this was left there: " + "; ".join(left)))
        nemesis.end_all()
    operations = gathered(folder)
    write(folder / "history.jsonl", operations)
    (folder / "faults.json").write_text(
        json.dumps({"reads": reads, "lost": nemesis.lost, "done": nemesis.done}, indent=1)
    )
    (folder / "stderr").write_text(err)
    for file in [*folder.glob("*.client"), *folder.glob("*.pid")]:
        file.unlink()
    wrong, stale = judged(operations, nemesis.lost, reads)
    faults += wrong
    return Round(operations, nemesis.done, nemesis.missing, faults, stale, err, folder / "history.jsonl")


def judged(operations: list[Operation], lost: list[str], reads: str) -> tuple[list[Fault], list[Fault]]:
    """Return violations, and stale reads, which are permitted to a dictionary of the kind `default`."""
    if reads == "linearizable":
        return check(operations, lost), []
    wrong = check(without_reads(operations), lost) + reads_that_go_back(operations, lost)
    return wrong, stale_reads(operations)


def what_is_left(hosts: SshHosts) -> list[str]:
    """Return what a run has left at its hosts and does not remove in time."""
    deadline = time.monotonic() + ENDING
    while (left := hosts.leftovers()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left
