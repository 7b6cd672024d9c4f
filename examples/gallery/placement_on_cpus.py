"""A process that may run on one CPU only."""

import os

from dragon.infrastructure.policy import Policy
from dragon.native import Process, Queue
from dragon.native.machine import current


def tell(queue):
    queue.put(len(os.sched_getaffinity(0)))


if __name__ == "__main__":
    node = current()
    queue = Queue()
    policy = Policy(placement=Policy.Placement.HOST_NAME, host_name=node.hostname, cpu_affinity=[node.cpus[0]])
    process = Process(tell, (queue,), policy=policy)
    process.start()
    print("CPUs of the process:", queue.get())
    process.join()
