"""How far an operation travels: the Python calls and modules between a user's call and its effect, in all processes.

    python benchmarks/distance.py [--bin DIR] [--limits]

DIR is the bin folder of an environment that has the package; the default is this interpreter's. Counts do not depend on
how busy the machine is. Every process of a run of two nodes on this machine counts the functions of `dragon` that it
enters while an operation is repeated; what an idle run does meanwhile is subtracted. Modules are those entered at least
once for each operation. With --limits, the exit code says whether all aims are kept.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

# operation: (calls, modules) that are the aim
LIMITS = {
    "queue put, own node": (2, 0),
    "queue put, other node": (4, 2),
    "queue put with maxsize, other node": (8, 3),
    "queue get, other node": (8, 3),
    "lock, other node": (16, 3),
    "dictionary put, own node": (12, 6),
    "dictionary put, other node": (40, 10),
    "dictionary get, other node": (40, 10),
    "process started and joined, own node": (120, 20),
    "process started and joined, other node": (300, 25),
    "group of 4 on two nodes": (450, 30),
    "batch task": (100, 20),
}

COUNTER = """
import os, sys
folder = os.environ.get("DISTANCE")
if folder:
    import mmap, threading
    with open(folder + "/flag", "r+b") as file:
        flag = mmap.mmap(file.fileno(), 1)
    def count(frame, event, argument):
        if event == "call" and flag[0]:
            name = frame.f_code.co_filename
            place = name.find("/dragon/")
            if place >= 0:
                with open(f"{folder}/calls.{os.getpid()}", "a") as out:
                    out.write(name[place + 8:] + "\\n")
    threading.setprofile(count)
    sys.setprofile(count)
"""

PROGRAM = """
import collections, glob, os, socket, sys, time
from dragon.data.ddict import DDict
from dragon.infrastructure.policy import Policy
from dragon.native.lock import Lock
from dragon.native.machine import Node, System
from dragon.native.process import Process, ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.native.queue import Queue
from dragon.workflows.batch import Batch

FOLDER, TIMES = os.environ["DISTANCE"], 20

def work(*_):
    pass

def make_lock(queue):
    queue.put(Lock())
    time.sleep(5)

def window(action, times=TIMES, settle=0.5):
    for name in glob.glob(FOLDER + "/calls.*"):
        os.unlink(name)
    with open(FOLDER + "/flag", "r+b") as file:
        file.write(b"\\1")
        file.flush()
        for _ in range(times):
            action()
        time.sleep(settle)
        file.seek(0)
        file.write(b"\\0")
    calls = [open(name).read().split() for name in glob.glob(FOLDER + "/calls.*")]
    by_module = collections.Counter(module for of_process in calls for module in of_process)
    return by_module.total(), sum(count >= times for count in by_module.values())

def main():
    mine = socket.gethostname()
    names = [Node(host).hostname for host in System().nodes]
    own_name = mine if mine in names else names[0]
    here, there = (
        Policy(placement=Policy.Placement.HOST_NAME, host_name=name)
        for name in (own_name, next(name for name in names if name != own_name))
    )
    free, bounded, own = Queue(0, policy=there), Queue(100, policy=there), Queue()
    maker = Process(make_lock, (own,), policy=there)
    maker.start()
    lock = own.get()
    maker.join()
    directory = DDict(1, 2, 2**27)
    remote = next(k for k in range(1000) if directory.which_manager(k) not in directory.local_managers)
    local = next(k for k in range(1000) if directory.which_manager(k) in directory.local_managers)
    batch = Batch()

    def both():
        lock.acquire()
        lock.release()

    def process(policy):
        one = Process(work, policy=policy)
        one.start()
        one.join()

    groups = []
    def group():
        one = ProcessGroup()
        one.add_process(nproc=4, template=ProcessTemplate(work))
        one.init()
        groups.append(one)
        one.start()

    actions = {
        "queue put, other node": lambda: free.put(2),
        "queue put with maxsize, other node": lambda: bounded.put(2),
        "queue get, other node": lambda: bounded.get(),
        "lock, other node": both,
        "dictionary put, other node": lambda: directory.__setitem__(remote, 2),
        "dictionary get, other node": lambda: directory[remote],
        "dictionary put, own node": lambda: directory.__setitem__(local, 2),
        "queue put, own node": lambda: own.put(2),
        "process started and joined, own node": lambda: process(here),
        "process started and joined, other node": lambda: process(there),
        "batch task": lambda: batch.function(work, 1).get(),
        "group of 4 on two nodes": group,
    }
    for name, action in actions.items():
        action()
        if name == "queue get, other node":
            bounded.put(1)
    time.sleep(1)
    idle = window(lambda: None, 1, 4.0)[0] / 4.0
    for name, action in actions.items():
        times = 5 if "group" in name else TIMES
        began = time.monotonic()
        calls, modules = window(action, times)
        calls -= idle * (time.monotonic() - began)
        print("RESULT", name, max(round(calls / times), 0), modules, sep="|", flush=True)
    for one in groups:
        one.join()
        one.close()
    batch.close()
    batch.join()
    directory.destroy()

if __name__ == "__main__":
    main()
"""


def measure(folder_of_commands: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Return the calls and modules of each operation. Raises RuntimeError if the run fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "sitecustomize.py").write_text(COUNTER)
        (folder / "program.py").write_text(PROGRAM)
        (folder / "flag").write_bytes(b"\0")
        ran = subprocess.run(
            [folder_of_commands / "dragon", "--nodes", "2", folder / "program.py"],
            env={**os.environ, "PYTHONPATH": name, "DISTANCE": name},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    rows = [line.split("|") for line in ran.stdout.splitlines() if line.startswith("RESULT|")]
    if ran.returncode or not rows:
        raise RuntimeError(f"the measured run failed: {ran.stdout[-2000:]}\n{ran.stderr[-3000:]}")
    return {what: (int(calls), int(modules)) for _, what, calls, modules in rows}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path(sys.executable).parent)
    parser.add_argument("--limits", action="store_true")
    arguments = parser.parse_args()
    over = 0
    print(f"{'':38}{'calls':>8}{'aim':>6}{'modules':>10}{'aim':>6}")
    for what, (calls, modules) in measure(arguments.bin).items():
        most = LIMITS[what]
        print(f"{what:38}{calls:>8}{most[0]:>6}{modules:>10}{most[1]:>6}")
        over += calls > most[0] or modules > most[1]
    print(f"{over} of {len(LIMITS)} over the aim")
    return bool(over) if arguments.limits else 0


if __name__ == "__main__":
    sys.exit(main())
