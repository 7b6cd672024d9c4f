"""Changes a replicated dictionary from all nodes while connections between nodes break, and counts the changes.

broken_links.py NODES REPLICAS
"""

import random
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from dragon.data.ddict import DDict
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.runtime.run import this_run
from peers.connections import break_connections

ROUNDS = 8


def report_agent(queue: Queue) -> None:
    queue.put(this_run().agent.pid)


def work(ddict: DDict, queue: Queue, name: int) -> None:
    chance, added, own = random.Random(name), 0, {}
    popped = 0
    queue.put("begun")
    while "stop" not in ddict:
        what = chance.random()
        if what < 0.4:
            ddict.fetch_add("counter")
            added += 1
        elif what < 0.5:
            ddict[f"{name} once"] = name
            assert ddict.pop(f"{name} once") == name
            popped += 1
        elif what < 0.6:
            assert ddict.put_new(f"{name} new {added} {len(own)} {popped}", 1)
            own[f"{name} new {added} {len(own)} {popped}"] = 1
        else:
            key = f"{name} key {chance.randrange(20)}"
            value = np.full(chance.choice([1, 1000, 100_000]), chance.randrange(1000))
            ddict[key] = own[key] = value
    queue.put((added, own))


def look(ddict: DDict, queue: Queue) -> None:
    """Send all items, as the replicas of this node hold them."""
    queue.put(dict(ddict.items()))


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


def on(node: int) -> Policy:
    return Policy(placement=Policy.Placement.HOST_ID, host_id=System().nodes[node])


def main() -> None:
    nodes, replicas = int(sys.argv[1]), int(sys.argv[2])
    queue, agents = Queue(), []
    for node in range(nodes):
        process = Process(report_agent, (queue,), policy=on(node))
        process.start()
        process.join()
        agents.append(queue.get(timeout=30))
    ddict = DDict(1, nodes, nodes * 64 * 2**20, replicas=replicas)
    workers = [Process(work, (ddict, queue, node), policy=on(node)) for node in range(nodes)]
    for worker in workers:
        worker.start()
    for _ in workers:
        assert queue.get(timeout=30) == "begun"
    broken = 0
    for _ in range(ROUNDS):
        time.sleep(0.25)
        broken += break_connections(agents)
    time.sleep(0.25)
    ddict["stop"] = True
    done = [queue.get(timeout=60) for _ in workers]
    assert [worker.join() for worker in workers] == [0] * nodes
    added = sum(count for count, _ in done)
    assert ddict.pop("counter") == added
    del ddict["stop"]
    expected = {key: value for _, own in done for key, value in own.items()}
    for node in range(nodes):
        process = Process(look, (ddict, queue), policy=on(node))
        process.start()
        assert same(queue.get(timeout=10), expected), f"node {node} shows something else"
        process.join()
    assert broken >= ROUNDS / 2
    print(f"{broken} connections broken, {added} additions", file=sys.stderr)
    print("all done once")
    ddict.destroy()


if __name__ == "__main__":
    main()
