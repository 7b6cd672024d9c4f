"""Processes of other nodes that wait for the same object receive it in the order of their requests."""

from __future__ import annotations

import pytest

from conftest import Site

OBJECTS = {
    "Lock": ("Lock()", "shared.acquire()", "shared.release()"),
    "RLock": ("Lock(recursive=True)", "shared.acquire(); shared.acquire()", "shared.release(); shared.release()"),
    "Semaphore": ("Semaphore(1)", "shared.acquire()", "shared.release()"),
    "Queue": ("filled(Queue())", "shared.get()", "shared.put(1)"),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_waiting_processes_of_another_node_take_turns(site: Site, name: str) -> None:
    make, take, give = OBJECTS[name]
    done = site.dragon(
        "--nodes",
        "2",
        "--no-label",
        site.write(f"""
        import time
        from dragon.infrastructure.policy import Policy
        from dragon.native import Lock, Process, Queue, Semaphore

        def filled(queue):
            queue.put(1)
            return queue

        def work(shared, turns, number):
            for _ in range(40):
                {take}
                turns.put(number)
                time.sleep(0.002)
                {give}

        if __name__ == "__main__":
            shared, turns = {make}, Queue(maxsize=1000)
            there = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
            processes = [Process(work, (shared, turns, number), policy=there) for number in range(4)]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
            order = [turns.get() for _ in range(160)]
            # Once all have begun and until the first has finished, none is passed over. One that has no processor for
            # a while does not ask, and has fewer turns.
            begun = max(order.index(number) for number in range(4))
            finished = min(len(order) - order[::-1].index(number) for number in range(4))
            served = [order[begun:finished].count(number) for number in range(4)]
            print("fair" if max(served) <= 2 * min(served) + 5 else served)
    """),
    )
    assert (done.stdout, done.returncode) == ("fair\n", 0), done.stderr
