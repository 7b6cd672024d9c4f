"""Executors and processes of the standard library's classes run on all nodes of a run."""

from __future__ import annotations

import pytest

from conftest import Site

_PROGRAM = """
import multiprocessing as mp, os, socket, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import queues
import dragon

def where(_=None):
    time.sleep(0.1)
    return socket.gethostname()

def tell(queue, large):
    queue.put((socket.gethostname(), len(large)))

def look(queue, file):
    queue.put(socket.gethostname())

def prepare(value):
    global prepared
    prepared = value

def read(_):
    time.sleep(0.05)
    return prepared, socket.gethostname()

def fail(_):
    raise ValueError("no")

if __name__ == "__main__":
    context = mp.get_context("dragon")
"""


def hosts(site: Site, body: str, nodes: int = 2) -> tuple[str, str]:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    done = site.dragon("--nodes", str(nodes), site.write(_PROGRAM + lines + "\n"), timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_an_executor_uses_all_nodes(site: Site) -> None:
    out, err = hosts(
        site,
        """
with ProcessPoolExecutor(4, mp_context=context, initializer=prepare, initargs=("yes",)) as executor:
    print(len(set(executor.map(where, range(12)))))
    print(sorted(set(executor.map(read, range(12)))))
    print(type(executor.submit(fail, 1).exception()).__name__)
    print(sum(map(len, executor.map(bytes, [1 << 20] * 20))) >> 20, end=" ")
    print(executor.submit(len, bytes(30 << 20)).result() >> 20)
with ProcessPoolExecutor(2, mp_context=context) as executor:
    try:
        executor.submit(os._exit, 3).result()
    except Exception as error:
        print(type(error).__name__)
""",
    )
    assert out.splitlines() == [
        "2",
        "[('yes', 'node-0'), ('yes', 'node-1')]",
        "ValueError",
        "20 30",
        "BrokenProcessPool",
    ]
    assert err == ""


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue", "SimpleQueue"])
def test_the_standard_librarys_queues_reach_all_nodes(site: Site, kind: str) -> None:
    out, err = hosts(
        site,
        f"""
context.Lock()
queue = queues.{kind}(ctx=context)
processes = [context.Process(target=tell, args=(queue, bytes(100_000))) for _ in range(4)]
for process in processes:
    process.start()
print(sorted({{queue.get() for _ in processes}}))
for process in processes:
    process.join()
    assert process.exitcode == 0
""",
    )
    assert (out, err) == ("[('node-0', 100000), ('node-1', 100000)]\n", "")


def test_processes_that_inherit_descriptors_stay_on_their_node_with_one_warning(site: Site) -> None:
    out, err = hosts(
        site,
        """
from multiprocessing import connection
queue = context.Queue()
reading, writing = connection.Pipe()
processes = [context.Process(target=look, args=(queue, reading)) for _ in range(4)]
for process in processes:
    process.start()
print({queue.get() for _ in processes})
for process in processes:
    process.join()
""",
    )
    assert out == "{'node-0'}\n"
    assert err.count("inherits open files") == 1, err
