"""Processes of another node print, end, and hold a lock while the nodes cannot reach each other.

apart.py FOLDER
"""

import os
import signal
import sys
import time
from pathlib import Path

from dragon.infrastructure.policy import Policy
from dragon.native.lock import Lock
from dragon.native.machine import System
from dragon.native.process import Popen, Process, ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.native.queue import Queue

FOLDER = Path(sys.argv[1])


def await_file(name: str) -> None:
    while not (FOLDER / name).exists():
        time.sleep(0.1)


def prints() -> None:
    print("before", flush=True)
    await_file("whole")
    time.sleep(3)
    print("after", flush=True)


def ends() -> None:
    await_file("apart")


def dies_with(lock: Lock, told: Queue) -> None:
    lock.acquire()
    told.put("held")
    await_file("apart")
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    there = Policy(placement=Policy.Placement.HOST_ID, host_id=System().nodes[1])
    lock, told = Lock(), Queue()
    printing = Process(prints, stdout=Popen.PIPE, policy=there)
    printing.start()
    assert printing.stdout_conn is not None
    print(printing.stdout_conn.recv(), end="")
    holder = Process(dies_with, (lock, told), policy=there)
    holder.start()
    print(told.get(timeout=30))
    group = ProcessGroup(policy=there)
    group.add_process(3, ProcessTemplate(ends))
    group.init()
    group.start()
    print("begun", flush=True)
    await_file("whole")
    group.join(timeout=40)
    group.close()
    print("the group has ended")
    print("the lock is free:", lock.acquire(timeout=40))
    try:
        while True:
            print(printing.stdout_conn.recv(), end="", flush=True)
    except EOFError:
        print("the output has ended", flush=True)


if __name__ == "__main__":
    main()
