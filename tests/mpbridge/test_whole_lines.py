"""What processes write to their standard streams."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

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


CAPTURED = """
import collections
import multiprocessing as mp
import os
import sys

import dragon
from dragon.native.process import ProcessTemplate
from dragon.native.process_group import ProcessGroup

def say(word):
    print(word)

def say_much(word):
    print((50 * word + "\\n") * 5_000, end="")

def started(*words):
    processes = [mp.Process(target=say_much, args=(word,)) for word in words]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

def group():
    group = ProcessGroup()
    group.add_process(2, ProcessTemplate(say, ("function",)))
    group.add_process(2, ProcessTemplate("echo", ("executable",)))
    group.init()
    group.start()
    group.join()
    group.close()

def pool():
    with mp.Pool(2) as pool:
        pool.map(say, 4 * ["task"], chunksize=1)
        pool.close()
        pool.join()

if __name__ == "__main__":
    mp.set_start_method("dragon")
    kept = os.dup(1)
    for action in (lambda: started(*"abcd"), group, pool):
        with open("captured", "w+") as file:
            os.dup2(file.fileno(), 1)
            action()
            os.dup2(kept, 1)
            file.seek(0)
            print({line[:20]: n for line, n in sorted(collections.Counter(file.read().splitlines()).items())})
    started("e")
    null = mp.Process(target=say, args=("f",))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    null.start()
    null.join()
"""


@pytest.mark.parametrize("command", [[], ["-m", "dragon"], ["-m", "dragon", "--nodes", "2"]])
def test_processes_write_where_descriptor_1_of_their_creator_leads(site: Site, command: list[str]) -> None:
    ran = site.run(sys.executable, *command, site.write(CAPTURED))
    lines = ran.stdout.splitlines()
    assert (lines[0], ran.stderr) == (str({20 * word: 5_000 for word in "abcd"}), "")
    assert lines[1:3] == [str({"executable": 2, "function": 2}), str({"task": 4})]
    assert lines[3:] == 5_000 * [50 * "e"]


def test_processes_write_whole_lines_at_once_where_python_is_unbuffered(site: Site) -> None:
    ran = site.python(LINES, env={"PYTHONUNBUFFERED": "1"})
    pieces = [repr(piece) for piece in (b"a line\n", b"an error\n", b"asked: ", b"b\n")]
    assert (ran.stdout.splitlines(), ran.stderr) == (3 * pieces, "")
