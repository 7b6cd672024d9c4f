"""A process on each node works until the main program, which receives the warning before the time limit, ends it."""

import signal
import time

from dragon.native.event import Event
from dragon.native.machine import System
from dragon.native.process import ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.native.queue import Queue

warnings = []


def work(nearly_over, at_work):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # some Slurms tell all processes of a job
    at_work.put(None)
    nearly_over.wait()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda number, frame: warnings.append(number))
    nearly_over, at_work = Event(), Queue()
    group = ProcessGroup()
    group.add_process(nproc=System().nnodes, template=ProcessTemplate(work, (nearly_over, at_work)))
    group.init()
    group.start()
    for _ in range(System().nnodes):
        at_work.get()
    print("at work", flush=True)
    while not warnings:
        time.sleep(0.05)
    nearly_over.set()
    group.join()
    group.close()
    print("saved", flush=True)
