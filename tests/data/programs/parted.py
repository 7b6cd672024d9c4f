"""Writes values on one node that another one reads from its replica, while the test separates the two nodes.

parted.py FOLDER
"""

import sys
import time
from pathlib import Path

from dragon.data.ddict import DDict
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System
from dragon.native.process import Process
from dragon.native.queue import Queue

SLACK = 8.0  # seconds that what is read may be behind; a node that nobody reaches any more ends within five


def write(ddict: DDict, folder: Path) -> None:
    """Put growing numbers, and keep the last acknowledged one in a file."""
    number = 0
    while not (folder / "stop").exists():
        number += 1
        ddict["number"] = number
        (folder / "new").write_text(str(number))
        (folder / "new").replace(folder / "acknowledged")
        time.sleep(0.01)


def read(ddict: DDict, folder: Path, queue: Queue) -> None:
    """Read until some time after the nodes are connected again, and send the first and last read that was too old."""
    old, acknowledged = [], []
    whole_since = 0.0
    queue.put("begun")
    while not whole_since or time.monotonic() < whole_since + 5:
        acknowledged.append((time.monotonic(), int((folder / "acknowledged").read_text())))
        found = ddict["number"]
        due = [number for at, number in acknowledged if at < acknowledged[-1][0] - SLACK]
        if due and found < due[-1]:
            old.append((found, due[-1]))
        if not whole_since and (folder / "whole").exists():
            whole_since = time.monotonic()
        time.sleep(0.02)
    queue.put(old[:1] + old[-1:])


def on(host: str) -> Policy:
    return Policy(placement=Policy.Placement.HOST_ID, host_id=host)


def main() -> None:
    folder, queue, nodes = Path(sys.argv[1]), Queue(), System().nodes
    ddict = DDict(policy=[on(nodes[1])], managers_per_policy=1, total_mem=2**24, replicas=2)
    writer = Process(write, (ddict, folder), policy=on(nodes[0]))
    writer.start()
    while not (folder / "acknowledged").exists():
        time.sleep(0.05)
    reader = Process(read, (ddict, folder, queue), policy=on(nodes[2]))
    reader.start()
    print(queue.get(timeout=60), flush=True)
    old = queue.get(timeout=90)
    (folder / "stop").touch()
    writer.join()
    reader.join()
    print(f"{old} are read where newer ones were acknowledged" if old else "the newest value is read", flush=True)


if __name__ == "__main__":
    main()
