"""Make and drop processes, pools, queues, groups and dictionaries for a long time, and measure the processes that live
as long as the run: memory, descriptors and threads of agents, zygotes, the front end and the program itself.

    python tests/soak.py --minutes 10 --nodes 3

A round makes objects of every kind, on every node, and drops them. All processes are measured between two rounds. The
program prints the medians of the first and of the last third of the rounds, without the first tenth, in which caches
fill. It fails if a process grew by more than a megabyte, two descriptors or one thread. In a run of several nodes 10 kB
for each round are allowed in addition: a round has 14 processes, and an agent remembers 16,384 that have ended, 0.7 kB
each.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing as mp
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import psutil

from dragon import _core
from dragon.data.ddict import DDict
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System
from dragon.native.process import Popen, Process, ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.native.queue import Queue

ALLOWED = 1.0, 2, 1  # megabytes, descriptors and threads by which a process may grow
REMEMBERED = 0.01  # megabytes that a run of several nodes may remember of each round
FEWEST = 12  # minimum number of rounds for a verdict


@dataclass(frozen=True)
class Taken:
    """The resources of a process: megabytes of its own, descriptors, threads."""

    memory: float
    descriptors: float
    threads: float


def measured(pid: int) -> Taken:
    process = psutil.Process(pid)
    return Taken(process.memory_full_info().uss / 1e6, process.num_fds(), process.num_threads())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="how long rounds are begun (default: 10)")
    parser.add_argument("--nodes", type=int, default=1, help="nodes of the run, all on this machine (default: 1)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        serve_rounds()
        return 0
    nodes = ["--nodes", str(arguments.nodes)] if arguments.nodes > 1 else []
    command = [sys.executable, "-m", "dragon", *nodes, __file__, "--inside"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as run:
        samples, shared = measure(run, arguments.minutes * 60)
    return judge(samples, shared, REMEMBERED if arguments.nodes > 1 else 0.0) or run.returncode


def measure(run: subprocess.Popen[str], seconds: float) -> tuple[dict[int, list[Taken]], list[float]]:
    """Return the resources of each process after each round, by process id, and the megabytes that the nodes' objects
    took.
    """
    assert run.stdin is not None
    assert run.stdout is not None
    samples: dict[int, list[Taken]] = defaultdict(list)
    shared: list[float] = []
    end, said = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        print("go", file=run.stdin, flush=True)
        told = run.stdout.readline()
        if not told.startswith("done "):
            raise SystemExit(f"the run ended with {run.wait()} after {len(shared)} rounds")
        shared.append(float(told.split()[1]))
        for pid in living(run.pid):
            samples[pid].append(measured(pid))
        if time.monotonic() > said + 10:
            said = time.monotonic()
            print(f"{len(shared)} rounds, {max(end - said, 0):.0f} s left", file=sys.stderr, flush=True)
    run.stdin.close()
    return {pid: found for pid, found in samples.items() if len(found) == len(shared)}, shared


def living(root: int) -> list[int]:
    return [root, *(child.pid for child in psutil.Process(root).children(recursive=True) if child.is_running())]


def judge(samples: dict[int, list[Taken]], shared: list[float], remembered: float) -> int:
    """Print the resources; return 1 if one grew too much. `remembered` megabytes of each round are allowed."""
    rounds = len(shared)
    if rounds < FEWEST:
        print(f"only {rounds} rounds: {FEWEST} are needed to say something")
        return 1
    print(f"{rounds} rounds{'':24} MB            descriptors     threads")
    grown = False
    allowed_more = remembered * rounds * 0.9 * 2 / 3  # between the middles of the first and the last third
    for number, found in enumerate(samples.values()):
        columns = [thirds(column) for column in zip(*map(astuple, found), strict=True)]
        most = (ALLOWED[0] + allowed_more, *ALLOWED[1:])
        too_much = [after - before > allowed for (before, after), allowed in zip(columns, most, strict=True)]
        grown |= any(too_much)
        shown = "   ".join(f"{before:6.1f} {after:6.1f}" for before, after in columns)
        print(f"process {number:<24} {shown}{'   GREW' if any(too_much) else ''}")
    before, after = thirds(shared)
    grown |= after - before > ALLOWED[0]
    print(f"{'shared memory':32} {before:6.1f} {after:6.1f}{'   GREW' if after - before > ALLOWED[0] else ''}")
    return int(grown)


def thirds(values: Sequence[float]) -> tuple[float, float]:
    """Return the medians of the first and the last third, after leaving out the first tenth."""
    values = values[len(values) // 10 :]
    third = len(values) // 3
    return statistics.median(values[:third]), statistics.median(values[-third:])


# ---- in the run


def serve_rounds() -> None:
    mp.set_start_method("dragon")
    for _ in sys.stdin:
        standard_objects()
        pools()
        in_use = native_objects()
        dictionaries()
        gc.collect()
        print("done", in_use / 1e6, flush=True)


def standard_objects() -> None:
    queue, lock, event, barrier = mp.Queue(), mp.Lock(), mp.Event(), mp.Barrier(3)
    value, (one, other) = mp.Value("i", 0), mp.Pipe()
    processes = [mp.Process(target=use, args=(queue, lock, event, barrier, value)) for _ in range(3)]
    for process in processes:
        process.start()
    one.send(bytes(100_000))
    assert len(other.recv()) == 100_000
    event.set()
    assert sorted(queue.get() for _ in processes) == [1, 2, 3]
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    with mp.Manager() as manager:
        shared = manager.dict(a=1)
        assert shared.copy() == {"a": 1}


def use(queue: mp.Queue, lock: object, event: object, barrier: object, value: object) -> None:
    event.wait()
    with lock:
        value.value += 1
        queue.put(value.value)
    barrier.wait()


def pools() -> None:
    with mp.Pool(2) as pool:
        assert pool.map(abs, range(-20, 0)) == list(range(20, 0, -1))
    with mp.Pool(1) as pool:
        assert list(pool.imap_unordered(os.path.basename, ["a/b"])) == ["b"]


def native_objects() -> int:
    """Also gives how many bytes of memory the objects of all nodes take."""
    in_use = 0
    for node in System().nodes:
        policy = Policy(placement=Policy.Placement.HOST_ID, host_id=node)
        queue = Queue(10, policy=policy)
        process = Process(tell, (queue,), policy=policy)
        process.start()
        told, message = queue.get()
        assert len(message) == 200_000
        in_use += told
        process.join()
        queue.destroy()
    group = ProcessGroup()
    group.add_process(4, ProcessTemplate(print, ("a line",), stdout=Popen.PIPE))
    group.init()
    group.start()
    group.join()
    assert [code for _, code in group.exit_status] == [0] * 4
    group.close()
    return in_use


def tell(queue: Queue) -> None:
    queue.put((_core.usage()["in_use"], bytes(200_000)))


def dictionaries() -> None:
    nodes = System().nnodes
    for settings in ({}, {"replicas": min(2, nodes)}):
        dictionary = DDict(1, nodes, nodes * 2**24, **settings)
        for number in range(20):
            dictionary[number] = bytes(10_000)
        process = mp.Process(target=read, args=(dictionary,))
        process.start()
        process.join()
        assert process.exitcode == 0
        dictionary.destroy()


def read(dictionary: dict[int, bytes]) -> None:
    assert len(dictionary[7]) == 10_000
    dictionary["there"] = 1


if __name__ == "__main__":
    raise SystemExit(main())
