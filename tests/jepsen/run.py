"""Run clients on three hosts of this machine that use a replicated dictionary and queues while processes and hosts are
killed, stopped and disconnected, and check the results of their operations.

    python tests/jepsen/run.py --minutes 60 --seed 7

A round is a separate run over three hosts (network namespaces, each with an sshd; root is required), with twelve
clients and some faults, of which at most one removes a host permanently. The operations and the faults are drawn from
the seed and the round's number; their timing is not. The same seed gives a similar round, not an identical one.

The guarantees of docs/dictionary.md and docs/queues_and_pools.md are checked: registers and counters are linearizable,
a set has all added elements, no message of a queue is taken twice, invented, out of order or lost (but for one message
that a killed client was taking).

The number of operations and faults is printed for each round, and for each violation a few operations that cannot all
have happened. The history of a round with a violation is kept:

    python tests/jepsen/run.py --check FOLDER/7-12     # check that round's history once more
    less FOLDER/7-12/faults.json                       # what was done to the hosts, by the same clock
    less FOLDER/7-12/stderr                            # the messages of the run

With --reads default the reads of the dictionary use the copy on their own node, which may be stale: stale reads are
counted and shown, but are not violations. This shows that the checker finds them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import Site
from jepsen.history import read
from jepsen.nemesis import start_victims
from jepsen.rounds import judged, round_of
from peers.ssh import SshHosts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="how long rounds are begun (default: 10)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of all drawing (default: the time)")
    parser.add_argument("--seconds", type=float, default=25, help="of faults in a round (default: 25)")
    parser.add_argument(
        "--reads", choices=["linearizable", "default"], default="linearizable", help="of the dictionary"
    )
    parser.add_argument("--keep", type=Path, help="where histories go (default: a temporary folder)")
    parser.add_argument("--keep-all", action="store_true", help="keep those of rounds without violations, too")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="run nothing, check the history in it")
    arguments = parser.parse_args()
    if arguments.check:
        return check_again(arguments.check)
    keep = (arguments.keep or Path(tempfile.mkdtemp(prefix="jepsen-"))).resolve()
    if keep.exists() and any(keep.iterdir()):
        parser.error(f"{keep} has histories already")
    print(f"seed {arguments.seed}, histories in {keep}", flush=True)
    with tempfile.TemporaryDirectory() as folder, start_victims(Path(folder)) as hosts:
        site = Site(Path(folder) / "s")
        site.folder.mkdir()
        try:
            return go_on(hosts, site, keep, arguments)
        finally:
            site.end()


def go_on(hosts: SshHosts, site: Site, keep: Path, arguments: argparse.Namespace) -> int:
    """Run one round after the other; return 1 if there was a violation."""
    end, number, totals = time.monotonic() + arguments.minutes * 60, 0, Counter[str]()
    missing, unknown = set[str](), Counter[str]()
    while time.monotonic() < end:
        number += 1
        seed = f"{arguments.seed}-{number}"
        done = round_of(hosts, site, keep / seed, seed, arguments.seconds, arguments.reads)
        print(f"{seed}: {done.summary()}", flush=True)
        for fault in [*done.faults, *done.stale]:
            print(("" if fault in done.faults else "behind: ") + str(fault), flush=True)
        totals["operations"] += len(done.operations)
        totals["faults"] += sum(not what.startswith("end of") for _, what in done.done)
        totals["violations"] += len(done.faults)
        totals["objects with reads that were behind"] += len(done.stale)
        missing |= done.missing
        unknown += done.unknown()
        if done.faults or done.stale or arguments.keep_all:
            print(f"    kept: {done.history.parent}", flush=True)
        else:
            shutil.rmtree(done.history.parent)
    print(f"{number} rounds: " + ", ".join(f"{count} {what}" for what, count in totals.items()))
    print("outcomes unknown: " + ", ".join(f"{count} {why}" for why, count in unknown.most_common()))
    for what in sorted(missing):
        print(f"left out: {what}")
    return 1 if totals["violations"] else 0


def check_again(folder: Path) -> int:
    """Check a saved history again."""
    known = json.loads((folder / "faults.json").read_text())
    faults, stale = judged(read(folder / "history.jsonl"), known["lost"], known["reads"])
    for fault in faults:
        print(fault)
    for fault in stale:
        print(f"behind: {fault}")
    print(f"{len(faults)} violations")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
