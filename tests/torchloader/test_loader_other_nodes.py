"""Loading workers on other nodes of the run: their placement, their batches, and the loss of a node."""

from __future__ import annotations

import subprocess

import pytest

from conftest import Site
from together import failures
from torchloader import ElasticDataLoader

PROGRAM = """
import glob, json, os, signal, subprocess, sys, threading, time, warnings
from contextlib import suppress

sys.modules["torch"] = None  # nothing here needs it, and every worker would import it

import numpy as np

from dragon.native.machine import System, current
from torchloader import ElasticDataLoader

NODES = [policy.host_name for policy in System().hostname_policies()]
VALUES = np.arange(400_000).reshape(400, 1000)  # more than a megabyte: on one node it is in memory once


class Rows:
    def __init__(self, values=VALUES):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return int(self.values[index][0]), float(np.random.random()), current().hostname, os.getpid()


class Slow(Rows):
    def __getitem__(self, index):
        time.sleep(0.004)
        return super().__getitem__(index)


def loader(dataset=Rows, **options):
    return ElasticDataLoader(dataset(), 8, shuffle=True, seed=3, num_workers=4, collate_fn=list, **options)


def samples(batches):
    return [(value, drawn) for batch in batches for value, drawn, _, _ in batch]


def agent_of(node):
    out = subprocess.run([sys.executable, "-m", "dragon", "ps", "--json"], capture_output=True, text=True, check=True)
    runs = [run for run in json.loads(out.stdout) if __file__ in run["command"]]
    return next(each["agent"] for run in runs for each in run["nodes"] if each["node"] == node)


class Placed(Rows):
    # Gives the file in which the values lie in memory.
    def __getitem__(self, index):
        address = self.values.__array_interface__["data"][0]
        for line in open("/proc/self/maps"):
            first, last = (int(number, 16) for number in line.split()[0].split("-"))
            if first <= address < last:
                return current().hostname, os.getpid(), int(line.split()[4])


def looked_at(batches, besides=()):
    # Workers that were killed may have made batches ahead.
    workers = {}
    while len(workers) < 4:  # as some are ready before others
        found = [sample for batch in batches for sample in batch]
        workers |= {process: (node, file) for node, process, file in found if process not in besides}
    return workers


def holders(file):
    # The processes that have the file open.
    found = set()
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        with suppress(OSError):
            if os.stat(path).st_ino == file and os.readlink(path).startswith("/memfd:"):
                found.add(int(path.split("/")[2]))
    return found
"""


TOGETHER = """
import select

from dragon.native.process import Process
from dragon.native.queue import Queue


class Stream:
    def __iter__(self):
        return iter([(index, current().hostname) for index in range(100)])


def check_workers_on_other_nodes_give_the_same_batches():
    with loader() as here, loader(workers_on=NODES[1:]) as there:
        for _ in range(2):
            ours, theirs = list(here), list(there)
            assert samples(ours) == samples(theirs)
            assert len(samples(theirs)) == 400
    assert {host for batch in ours for *_, host, _ in batch} == {NODES[0]}
    assert {host for batch in theirs for *_, host, _ in batch} <= set(NODES[1:])


def check_workers_are_placed_round_robin_on_the_named_nodes():
    with loader(workers_on=NODES, dataset=Slow, persistent_workers=True) as batches:
        hosts = {}
        while len(hosts) < 4:  # as some are ready before others
            hosts |= {pid: host for batch in batches for _, _, host, pid in batch}
    assert sorted(hosts.values()) == sorted([*NODES, NODES[0]])


def check_workers_can_move_to_other_nodes_during_an_epoch():
    given, hosts, moves = [], [], {4: NODES[1:], 24: NODES[:1]}
    with loader(Slow, workers_on=NODES[0]) as batches:
        for number, batch in enumerate(batches):
            given += samples([batch])
            hosts.append(batch[0][2])
            if number in moves:
                batches.resize(2, workers_on=moves[number])
                while batches.counters.workers < 2:
                    time.sleep(0.01)
        assert batches.workers_on == NODES[:1]
    assert (hosts[:5], set(hosts[16:25])) == (NODES[:1] * 5, set(NODES[1:]))
    assert given == samples(loader())
    assert (set(hosts), hosts[-1]) == (set(NODES), NODES[0])


def check_streams_of_an_iterable_style_dataset_are_read_on_other_nodes():
    with ElasticDataLoader(Stream(), 10, num_workers=1, collate_fn=list, workers_on=NODES[1]) as batches:
        read = [sample for batch in batches for sample in batch]
    assert read == [(index, NODES[1]) for index in range(100)]


def check_auto_works_with_workers_on_other_nodes():
    options = {"num_workers": "auto", "collate_fn": list, "workers_on": NODES[1:]}
    with ElasticDataLoader(Slow(), 8, **options) as batches:
        while batches.workers < 2:
            for _ in batches:
                pass
        assert batches.tuning is not None


def check_the_workers_of_another_node_share_one_copy_of_the_dataset():
    with loader(Placed, workers_on=NODES[1:], persistent_workers=True) as batches:
        for _ in range(2):
            workers = looked_at(batches)
            assert sorted(node for node, _ in workers.values()) == sorted(2 * NODES[1:])
            assert len(set(workers.values())) == 2
            assert all(file for _, file in workers.values())  # else it is memory of a worker's own
            batches.dataset.values = VALUES + 1


def train(queue):
    for batch in loader(Slow, workers_on=NODES[1]):
        queue.put(batch[0][3])


def check_workers_end_if_the_trainer_is_killed():
    queue = Queue()
    trainer = Process(train, (queue,))
    trainer.start()
    worker = os.pidfd_open(queue.get(timeout=60))
    trainer.kill()
    assert select.select([worker], [], [], 30)[0]
"""


def run(site: Site, nodes: int, source: str) -> subprocess.CompletedProcess[str]:
    return site.dragon("--nodes", str(nodes), site.write(f"{PROGRAM}\n{source}"), timeout=120)


def test_workers_on_other_nodes(site: Site) -> None:
    found = failures(site, PROGRAM + TOGETHER, "--nodes", "3")
    assert (found, found.stderr) == ({}, "")


def test_resize_refuses_workers_on_for_a_loader_made_without_it() -> None:
    with (
        ElasticDataLoader(range(8), num_workers=1) as loader,
        pytest.raises(ValueError, match=r"resize\(\) gets workers_on='node', and the loader was made without"),
    ):
        loader.resize(2, workers_on="node")


def test_no_sample_is_lost_or_repeated_if_a_worker_is_killed_and_a_node_lost(site: Site) -> None:
    done = run(
        site,
        3,
        """
if __name__ == "__main__":
    expected, got, hosts = samples(loader()), [], set()
    for number, batch in enumerate(loader(Slow, workers_on=NODES[1:])):
        got += samples([batch])
        if number == 8:
            os.kill(batch[0][3], signal.SIGKILL)
        if number == 16:
            os.kill(agent_of(1), signal.SIGKILL)
        if number > 40:
            hosts.add(batch[0][2])
    print(got == expected, hosts == {NODES[2]})
""",
    )
    assert done.stdout == "True True\n", done.stderr
    assert "node 1 (node-1) is lost" in done.stderr
    assert "Traceback" not in done.stderr


def test_workers_start_on_the_node_of_the_trainer_if_all_others_are_lost(site: Site) -> None:
    done = run(
        site,
        2,
        """
if __name__ == "__main__":
    expected, got = samples(loader()), []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number, batch in enumerate(loader(Slow, workers_on=NODES[1])):
            got += samples([batch])
            if number == 8:
                os.kill(agent_of(1), signal.SIGKILL)
    print(got == expected, batch[0][2] == NODES[0])
    print(*{str(each.message).partition(": ")[0] for each in told})
""",
    )
    assert done.stdout == "True True\nloading workers start on this node now\n", done.stderr


def test_a_worker_for_a_lost_node_starts_on_the_node_of_the_trainer(site: Site) -> None:
    done = run(
        site,
        2,
        """
from dragon.runtime.nodes import run_nodes

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    expected = samples(loader())
    moving = loader(workers_on=NODES[0])
    batches = iter(moving)
    got = samples([next(batches)])
    os.kill(agent_of(1), signal.SIGKILL)
    while NODES[1] in [node.host_name for node in run_nodes()]:
        moving.resize(4, workers_on=NODES[1])
        time.sleep(0.001)
    print(got + samples(batches) == expected)
""",
    )
    assert done.stdout == "True\n", done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"workers_on": 3}, TypeError, "workers_on must be the name of a node, or several, not 3"),
        ({"workers_on": "elsewhere"}, ValueError, "workers_on names node 'elsewhere'; this run has "),
        ({"workers_on": []}, TypeError, r"workers_on must be the name of a node, or several, not \[\]"),
        (
            {"workers_on": "node", "multiprocessing_context": "fork"},
            ValueError,
            "workers_on='node' goes without multiprocessing_context: workers of other nodes are new processes",
        ),
    ],
)
def test_invalid_names_of_nodes_are_refused(options: dict[str, object], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        ElasticDataLoader(range(8), num_workers=1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("when", ["before workers start", "before another is sent", "while another is sent"])
def test_a_copy_of_the_dataset_is_made_again_if_its_holder_is_killed(site: Site, when: str) -> None:
    done = run(
        site,
        2,
        f"""
if __name__ == "__main__":
    batches = loader(Placed, workers_on=NODES[1], persistent_workers=True)
    workers = looked_at(batches)
    ((_, file),) = set(workers.values())
    (holder,) = holders(file) - workers.keys()
    if {when == "while another is sent"}:  # it does not reply, and is killed while its reply is awaited
        os.kill(holder, signal.SIGSTOP)
        threading.Timer(1.5, os.kill, (holder, signal.SIGKILL)).start()
    else:
        os.kill(holder, signal.SIGKILL)
    if {when == "before workers start"}:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        again = looked_at(batches, besides=workers)
    else:
        batches.dataset.values = VALUES + 1
        again = looked_at(batches)
    print({{node for node, _ in again.values()}} == {{NODES[1]}})
    print(len(set(again.values())), (NODES[1], file) in again.values())
""",
    )
    assert (done.stdout, done.stderr) == ("True\n1 False\n", "")
