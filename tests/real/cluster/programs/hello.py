"""A process on each node reports its host and its parent process."""

import os

from dragon.native.machine import System, current
from dragon.native.process import ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.native.queue import Queue


def where(queue):
    # Processes of one node have one parent there, which starts them all.
    queue.put((current().hostname, os.getppid()))


if __name__ == "__main__":
    count = System().nnodes
    queue = Queue()
    group = ProcessGroup()
    group.add_process(nproc=2 * count, template=ProcessTemplate(where, args=(queue,)))
    group.init()
    group.start()
    places = {queue.get(timeout=60) for _ in range(2 * count)}
    group.join()
    group.close()
    print("head", current().hostname)
    print("nodes", *sorted(name for name, _ in places))
