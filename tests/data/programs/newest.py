"""Reads on all nodes the values that one node writes, and counts reads that are older than a put or read that had
returned before.

newest.py linearizable|default NODES REPLICAS SECONDS NODES_TO_KILL
"""

import mmap
import os
import signal
import struct
import sys
import time
from pathlib import Path

from dragon.data.ddict import DDict
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.runtime.run import this_run

SLOT = struct.Struct("<Q")


class Known:
    """The newest value that each process has seen, in a file that the processes of all nodes map; the nodes are
    simulated on one machine."""

    def __init__(self, file: Path, slots: int) -> None:
        with open(file, "r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), slots * SLOT.size)

    def newest(self) -> int:
        return max(number for (number,) in SLOT.iter_unpack(self._memory[:]))

    def note(self, slot: int, number: int) -> None:
        SLOT.pack_into(self._memory, slot * SLOT.size, number)


def write(ddict: DDict, file: Path, slots: int, seconds: float) -> None:
    known, number, end = Known(file, slots), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        number += 1
        ddict["number"] = number
        ddict[f"key {number}"] = number
        known.note(0, number)


def read(ddict: DDict, file: Path, slots: int, slot: int, seconds: float, queue: Queue) -> None:
    known, reads, old, end = Known(file, slots), 0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        due = known.newest()
        found = ddict["number"] if reads % 3 else ddict.get_many(["number", "number"])[0]
        old += found < due
        known.note(slot, found)
        if reads % 10 == 0 and (due := known.newest()):
            old += f"key {due - 1}" not in ddict if due > 1 else 0
        reads += 1
    queue.put((reads, old))


def report_agent(queue: Queue) -> None:
    queue.put(this_run().agent.pid)


def on(host: str) -> Policy:
    return Policy(placement=Policy.Placement.HOST_ID, host_id=host)


def main() -> None:
    nodes, replicas, seconds, to_kill = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
    hosts, queue, agents = System().nodes[:nodes], Queue(), []
    for host in hosts:
        process = Process(report_agent, (queue,), policy=on(host))
        process.start()
        process.join()
        agents.append(queue.get(timeout=30))
    options = {"replicas": replicas, "linearizable": sys.argv[1] == "linearizable"}
    ddict = DDict(policy=[on(hosts[-1])], managers_per_policy=1, total_mem=2**26, **options)
    ddict["number"] = 0
    living = hosts[: nodes - to_kill]
    file, slots = Path("known").resolve(), len(living) + 1
    file.write_bytes(bytes(slots * SLOT.size))
    processes = [Process(write, (ddict, file, slots, seconds), policy=on(hosts[0]))]
    for slot, host in enumerate(living, 1):
        processes.append(Process(read, (ddict, file, slots, slot, seconds, queue), policy=on(host)))
    for process in processes:
        process.start()
    for agent in agents[nodes - to_kill :]:
        time.sleep(seconds / 3)
        os.kill(agent, signal.SIGKILL)
    found = [queue.get(timeout=60) for _ in living]
    for process in processes:
        process.join()
    reads, old = (sum(column) for column in zip(*found, strict=True))
    print(f"{reads} reads", file=sys.stderr)
    print(f"{old} reads were too old")
    ddict.destroy()


if __name__ == "__main__":
    main()
