"""A process on each node prints its host, and runs until it is ended."""

import sys
import time

from dragon.native.machine import System, current
from dragon.native.process import ProcessTemplate
from dragon.native.process_group import ProcessGroup


def stay():
    sys.stdout.write(f"here: {current().hostname}\n")  # in one piece, also where PYTHONUNBUFFERED is set
    sys.stdout.flush()
    time.sleep(600)


if __name__ == "__main__":
    group = ProcessGroup()
    group.add_process(nproc=System().nnodes, template=ProcessTemplate(stay))
    group.init()
    group.start()
    group.join()
