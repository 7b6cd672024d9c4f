"""Changes a dictionary at random while processes and nodes are killed, and compares it with a dict after each step.

losses.py SEED NODES_TO_KILL
"""

import os
import random
import signal
import sys
import time

import numpy as np

from dragon.data.ddict import DDict
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.runtime.run import this_run


def report_agent(queue: Queue) -> None:
    queue.put(this_run().agent.pid)


def write_until_killed(ddict: DDict, name: str) -> None:
    number = 0
    while True:
        number += 1
        ddict[name] = np.full(number % 7 * 3000 + 1, number)


def whole(array: np.ndarray) -> bool:
    return bool((array == array[0]).all())


def main() -> None:
    chance, to_kill = random.Random(int(sys.argv[1])), int(sys.argv[2])
    nodes = System().nodes
    ddict = DDict(1, len(nodes), len(nodes) * 32 * 2**20, replicas=2)
    queue = Queue()
    agents = []
    for host in nodes:
        process = Process(report_agent, (queue,), policy=Policy(placement=Policy.Placement.HOST_ID, host_id=host))
        process.start()
        process.join()
        agents.append(queue.get(timeout=30))
    here = Policy(placement=Policy.Placement.LOCAL)
    writers = [Process(write_until_killed, (ddict, f"writer {i}"), policy=here) for i in range(2)]
    for writer in writers:
        writer.start()

    model: dict[str, np.ndarray] = {}
    added = 0
    kill_at = sorted(chance.sample(range(100, 500), to_kill))
    for step in range(600):
        key = f"key {chance.randrange(40)}"
        action = chance.random()
        if action < 0.5:
            value = np.full(chance.choice([1, 100, 20_000]), step)
            ddict[key] = model[key] = value
        elif action < 0.6:
            assert (ddict.pop(key, False) is False) == (model.pop(key, None) is None)
        elif action < 0.7:
            assert ddict.fetch_add("counter") == added
            added += 1
        elif action < 0.9:
            found = ddict.get(key)
            assert (found is None) == (key not in model), (step, key)
            assert found is None or np.array_equal(found, model[key]), (step, key)
        else:
            name = f"writer {chance.randrange(2)}"
            assert name not in ddict or whole(ddict[name]), (step, name)
        if kill_at and step == kill_at[0]:
            kill_at.pop(0)
            os.kill(agents.pop(), signal.SIGKILL)
            time.sleep(1.5)  # until what it held has been copied to another node
        if step == 300:
            writers[0].kill()
    writers[1].kill()
    left = {key: value for key, value in ddict.items() if key.startswith("key")}
    assert left.keys() == model.keys()
    assert all(np.array_equal(left[key], value) for key, value in model.items())
    print("nothing lost")
    ddict.destroy()


if __name__ == "__main__":
    main()
