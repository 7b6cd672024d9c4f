"""What processes write to their standard streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Site

LINES = """
import multiprocessing as mp
import os
import sys

import dragon
from dragon.native.process import Process

def say():
    print("a", "line")
    print("an error", file=sys.stderr)
    print("asked: ", end="", flush=True)
    print("b")

if __name__ == "__main__":
    mp.set_start_method("dragon")
    reading, writing = os.pipe2(os.O_DIRECT)  # which keeps the borders of what each write wrote
    kept = os.dup(1), os.dup(2)
    os.dup2(writing, 1), os.dup2(writing, 2)
    processes = [mp.Process(target=say), Process(say), Process(say, env={"OMP_NUM_THREADS": "3", "LC_ALL": "C"})]
    for process in processes:
        process.start()
        process.join()
    os.dup2(kept[0], 1), os.dup2(kept[1], 2)
    for _ in range(12):
        print(os.read(reading, 4096))
"""


def test_processes_write_whole_lines_at_once_where_python_is_unbuffered(site: Site) -> None:
    ran = site.python(LINES, env={"PYTHONUNBUFFERED": "1"})
    pieces = [repr(piece) for piece in (b"a line\n", b"an error\n", b"asked: ", b"b\n")]
    assert (ran.stdout.splitlines(), ran.stderr) == (3 * pieces, "")
