"""Puts messages into a queue of another node while the test separates the two nodes: lost messages must raise an
error.

unreached.py FOLDER
"""

import sys
import time
from pathlib import Path

from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System
from dragon.native.process import Process
from dragon.native.queue import Queue


def receive(answers: Queue) -> None:
    own: Queue = Queue(0)
    answers.put(own)
    arrived = []
    while (message := own.get(timeout=120)) is not None:
        arrived.append(message)
    answers.put(arrived)


def send(theirs: Queue, folder: Path, answers: Queue) -> None:
    """Put numbers, until some time after the nodes are connected again."""
    number = raised = 0
    end = float("inf")
    answers.put("begun")
    while time.monotonic() < end:
        number += 1
        try:
            theirs.put(number)
        except NodeLostError:
            raised += 1
        if end == float("inf") and (folder / "whole").exists():
            end = time.monotonic() + 8
        time.sleep(0.05)
    theirs.put(None)
    answers.put((number, raised))


def main() -> None:
    folder, nodes = Path(sys.argv[1]), System().nodes
    received, sent = Queue(), Queue()
    there, elsewhere = (Policy(placement=Policy.Placement.HOST_ID, host_id=nodes[index]) for index in (1, 2))
    receiver = Process(receive, (received,), policy=there)
    receiver.start()
    theirs = received.get(timeout=60)
    sender = Process(send, (theirs, folder, sent), policy=elsewhere)
    sender.start()
    print(sent.get(timeout=60), flush=True)
    number, raised = sent.get(timeout=120)
    arrived = received.get(timeout=60)
    print(f"{number} messages, {number - len(arrived)} did not arrive, {raised} errors", file=sys.stderr)
    print(
        "twice" if len(set(arrived)) < len(arrived) else "once", "told" if raised or len(arrived) == number else "lost"
    )
    for process in (receiver, sender):
        process.join()


if __name__ == "__main__":
    main()
