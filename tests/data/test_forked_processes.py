"""Objects of a run in processes that a program forks while its threads use these objects."""

from __future__ import annotations

import sys

import pytest

from conftest import Site

FORKING = """
import multiprocessing, signal, sys, threading

from dragon.data.ddict import DDict
from dragon.native.event import Event
from dragon.native.lock import Lock
from dragon.native.machine import System
from dragon.native.queue import Queue
from dragon.native.value import Value

LENGTH = 30_000
KEYS = range(8)


def use(inherited, text, rounds=3):
    queue, event, lock, value = Queue(), Event(), Lock(), Value("q", 0)
    attached = DDict.attach(text)
    for number in range(rounds):
        queue.put(number)
        assert queue.get(timeout=20) == number
        event.set()
        with lock:
            value.value += 1
        for ddict in (inherited, attached):
            for key in KEYS:
                ddict[key] = bytes([number]) * LENGTH
                assert len(set(found := ddict[key])) == 1 and len(found) == LENGTH  # whole, of one writer
    assert value.value == rounds
    attached.detach()


def child(ddict, text):
    signal.alarm(60)
    use(ddict, text)


if __name__ == "__main__":
    ddict = DDict(1, System().nnodes, 2**25)
    text, stop, failed = ddict.serialize(), threading.Event(), []

    def hammer():
        try:
            while not stop.is_set():
                use(ddict, text)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in threads:
        thread.start()
    context, codes = multiprocessing.get_context("fork"), []
    for _ in range(20):
        processes = [context.Process(target=child, args=(ddict, text)) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            codes.append(process.exitcode)
    stop.set()
    for thread in threads:
        thread.join()
    print(codes == [0] * 40, failed)
    ddict.destroy()
"""

ENDING = """
import os, sys

from dragon.data.ddict import DDict

ddict = DDict(1, 1, 2**20)
ddict["key"] = "value"
kept = ddict["key"]
if os.fork() == 0:
    sys.exit()  # an end in order, in which the interpreter frees what there is
os.wait()
print(ddict["key"], sorted(ddict.keys()))
ddict.destroy()
"""

LOADING = """
from torchloader import ElasticDataLoader

from dragon.data.ddict import DDict


class Stored:
    def __init__(self, ddict):
        self.ddict = ddict

    def __len__(self):
        return 200

    def __getitem__(self, index):
        return self.ddict[index]


if __name__ == "__main__":
    ddict = DDict(1, 1, 2**24)
    for index in range(200):
        ddict[index] = index
    loader = ElasticDataLoader(Stored(ddict), 5, num_workers=3, multiprocessing_context="fork", collate_fn=list)
    for _ in range(3):
        for number, batch in enumerate(loader):
            assert batch == [ddict[index] for index in range(5 * number, 5 * number + 5)], batch
    print("all of them")
    ddict.destroy()
"""


@pytest.mark.parametrize("nodes", [(), ("--nodes", "2")], ids=["one node", "two nodes"])
def test_forked_children_can_use_objects_that_threads_of_the_parent_were_using(
    site: Site, nodes: tuple[str, ...]
) -> None:
    done = site.dragon(*nodes, site.write(FORKING), timeout=120)
    assert (done.stdout, done.stderr) == ("True []\n", "")


def test_a_parent_can_use_its_objects_after_the_end_of_a_forked_child(site: Site) -> None:
    done = site.run(sys.executable, site.write(ENDING))
    assert (done.stdout, done.stderr) == ("value ['key']\n", "")


def test_forked_loading_workers_read_a_dictionary_that_the_trainer_also_reads(site: Site) -> None:
    done = site.run(sys.executable, site.write(LOADING), timeout=90)
    assert (done.stdout, done.stderr) == ("all of them\n", "")
