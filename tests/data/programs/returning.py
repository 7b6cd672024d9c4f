"""Changes a replicated dictionary from three nodes, one of which the test removes and returns, and compares the
content with the replies that the writers received.

returning.py FOLDER SECONDS
"""

import os
import sys
import threading
import time
from pathlib import Path

from dragon.data.ddict import DDict
from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System
from dragon.native.process import Process

THREADS = 6
PAUSE_S = 0.003  # seconds between the writes of a thread: without it they take a processor for the whole test


def write(ddict: DDict, folder: Path, name: str, seconds: float) -> None:
    """Put growing numbers and count, and record the acknowledged numbers and the results of fetch_add."""
    noted = os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    number, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        number += 1
        ddict[name] = number
        os.write(noted, f"put {number}\n".encode())
        os.write(noted, b"add\n")
        before = ddict.fetch_add("counter")
        os.write(noted, f"added {before}\n".encode())
        time.sleep(PAUSE_S)


def write_here(ddict: DDict, folder: Path, node: int, seconds: float) -> None:
    threads = [
        threading.Thread(target=write, args=(ddict, folder, f"writer-{node}-{i}", seconds)) for i in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    (folder / f"begun-{node}").touch()
    for thread in threads:
        thread.join()


def on(host: str) -> Policy:
    return Policy(placement=Policy.Placement.HOST_ID, host_id=host)


def check(ddict: DDict, folder: Path) -> list[str]:
    """Return descriptions of all errors in the dictionary's content."""
    faults, befores, asked = [], [], 0
    for file in folder.glob("writer-*"):
        lines = file.read_text().splitlines()
        numbers = [int(line.split()[1]) for line in lines if line.startswith("put ")]
        befores += [int(line.split()[1]) for line in lines if line.startswith("added ")]
        asked += lines.count("add")
        last = max(numbers, default=0)
        found = ddict.get(file.name, 0)
        if not last <= found <= last + 1:
            faults.append(f"{file.name} was told that {last} is stored, and finds {found}")
    if len(set(befores)) != len(befores):
        faults.append(f"{len(befores) - len(set(befores))} of {len(befores)} additions gave what another one gave")
    if not len(befores) <= ddict["counter"] <= asked:
        faults.append(f"{len(befores)} to {asked} additions made {ddict['counter']}")
    return faults


def main() -> None:
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    nodes = System().nodes
    ddict = DDict(policy=[on(nodes[1])], managers_per_policy=1, total_mem=2**25, replicas=2)
    ddict["counter"] = 0
    writers = [Process(write_here, (ddict, folder, node, seconds), policy=on(host)) for node, host in enumerate(nodes)]
    for writer in writers:
        writer.start()
    while len(list(folder.glob("begun-*"))) < len(nodes):
        time.sleep(0.05)
    print("begun", flush=True)
    for writer in writers:
        try:
            writer.join()
        except DragonError as error:
            print(error, file=sys.stderr)
    for fault in check(ddict, folder):
        print(fault)
    print("checked", flush=True)


if __name__ == "__main__":
    main()
