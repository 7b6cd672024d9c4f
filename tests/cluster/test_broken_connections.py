"""Connections between nodes that break while both nodes live: what ends or waits for an end is not forgotten."""

from __future__ import annotations

from pathlib import Path

from conftest import Site

PROGRAMS = Path(__file__).parent.parent / "data" / "programs"
HEAD = f"""
import sys, threading, time
sys.path.insert(0, {str(PROGRAMS)!r})
from broken_links import break_connections, on, report_agent

from dragon.native import Process, Queue
from dragon.native.process import ProcessTemplate
from dragon.native.process_group import ProcessGroup


class Breaking:
    # Breaks the connections between the nodes again and again.
    def __init__(self):
        queue, self.agents, self.over = Queue(), [], threading.Event()
        for node in range(2):
            process = Process(report_agent, (queue,), policy=on(node))
            process.start()
            process.join()
            self.agents.append(queue.get(timeout=30))

    def __enter__(self):
        self.over.clear()
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        while not self.over.wait(0.03):
            break_connections(self.agents)

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
"""


def run(site: Site, source: str) -> str:
    done = site.dragon("--nodes", "2", site.write(f"{HEAD}\n{source}"), timeout=120)
    assert done.stderr == ""
    return done.stdout


def test_a_group_learns_of_the_ends_of_all_members(site: Site) -> None:
    out = run(
        site,
        """
def brief(number):
    time.sleep(0.02 * number)
    sys.exit(number)


if __name__ == "__main__":
    breaking = Breaking()
    for _ in range(8):
        group = ProcessGroup(policy=on(1), ignore_error_on_exit=True)
        for number in range(5):
            group.add_process(1, ProcessTemplate(brief, (number,)))
        group.init()
        group.start()
        with breaking:
            time.sleep(0.3)
        group.join(timeout=20)
        print(sorted(code for _, code in group.inactive_puids))
        group.close()
""",
    )
    assert out == "[0, 1, 2, 3, 4]\n" * 8
