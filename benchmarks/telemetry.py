"""What telemetry costs: the agent that measures, and whoever asks many nodes.

    python benchmarks/telemetry.py [--seconds 20] [--processes 10 100 1000] [--nodes 4 16] [--fed 64 256]

The first table is the CPU time of a node's agent by its /proc/PID/stat, at the default second, less what it takes at
level 0, and how often each process is read. The second one is what a question for everything that was measured in the
last minute costs, and what a page for Prometheus does. Up to --nodes they are put to a run of so many simulated nodes,
of whose agents the one that is asked merges the others' answers. For --fed there is no run: the answers that a node
of the largest run gave are decoded, merged and told here, as those of so many nodes, by the code that does it there.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from dragon.infrastructure.messages import joined
from dragon.native.process import ProcessTemplate
from dragon.native.process_group import ProcessGroup
from dragon.runtime.agent_client import ask
from dragon.runtime.protocol.request import Request, answer_type
from dragon.runtime.protocol.telemetry import Kinds, Lines, Query
from dragon.runtime.run import this_run
from dragon.telemetry import AnalysisClient, Telemetry, analysis
from dragon.web import http
from dragon.web.serving import prometheus as page_for

Answer = TypeVar("Answer")

_TICKS = os.sysconf("SC_CLK_TCK")
_SETTLE = 3.0
_WINDOW = 60.0
_ROUNDS = 5


def _cpu(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _start(count: int) -> ProcessGroup:
    group = ProcessGroup(name="idle")
    group.add_process(count, ProcessTemplate("/bin/sleep", ("1000",)))
    group.init()
    group.start()
    return group


def _end(group: ProcessGroup) -> None:
    group.stop()
    group.close()


# ---- the agent that measures


def _percent(seconds: float) -> float:
    agent = this_run().agent.pid
    before, began = _cpu(agent), time.perf_counter()
    time.sleep(seconds)
    return 100 * (_cpu(agent) - before) / (time.perf_counter() - began)


def _pause() -> float:
    """Return the seconds between two readings of a process."""
    gaps = []
    for record in AnalysisClient().get_data("process_memory", interval=0):
        times = [float(when) for when in record["dps"]]
        gaps += [after - before for before, after in itertools.pairwise(times)]
    return statistics.fmean(gaps)


def _cost(seconds: float, counts: Sequence[int]) -> None:
    print("processes  level  % of a core  each is read every")
    for count in counts:
        group = _start(count)
        time.sleep(_SETTLE)
        idle = _percent(seconds)
        for level in (2, 4):
            telemetry = Telemetry()
            telemetry.start(level)
            time.sleep(_SETTLE)
            used = _percent(seconds) - idle
            pause = f"{_pause():.1f} s" if level == 4 else ""
            print(f"{count:9}  {level:5}  {used:11.2f}  {pause:>18}", flush=True)
            telemetry.shutdown()
        _end(group)


# ---- the process that sends queries


def _question() -> list[dict[str, Any]]:
    client = AnalysisClient()
    return client.get_data(sorted(client.get_metrics()), start_time=time.time() - _WINDOW)


def _median(step: Callable[[], object]) -> float:
    times = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _answer(nodes: int, per_node: int, record: str) -> None:
    """In a run of `nodes` nodes: send queries, print their duration, and wait until the page has been requested."""
    group = _start(nodes * per_node)
    time.sleep(_WINDOW / 4)
    agent = this_run().agent.pid
    before = _cpu(agent)
    seconds = _median(_question)
    used = (_cpu(agent) - before) / _ROUNDS
    print(msgspec.json.encode([len(_question()), seconds, used, agent]).decode(), flush=True)
    if record:
        now = time.time()
        names = [name for name, _ in ask(Kinds())]
        here = {"host": ["node-0"]}
        told = ask(Query(names, here, now - _WINDOW, now, 1.0, "last"))
        families = ask(Lines())
        for family in families:
            family.samples = [line for line in family.samples if 'host="node-0"' in line]
        Path(record).write_bytes(msgspec.msgpack.encode([told, [family for family in families if family.samples]]))
    sys.stdin.read()
    _end(group)


def _of_a_run(nodes: int, per_node: int, record: str) -> None:
    words = ["--nodes", str(nodes), "-T", "4", "--telemetry-port", "0", __file__]
    own = ["--answer", str(nodes), "--per-node", str(per_node), "--record", record]
    with subprocess.Popen(
        [sys.executable, "-m", "dragon", *words, *own],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stderr is not None
        found = re.search(r"http://\S+", run.stderr.readline())
        assert found is not None
        address = found[0]
        series, seconds, used, agent = msgspec.json.decode(run.stdout.readline())

        def get() -> bytes:
            with urllib.request.urlopen(address, timeout=60) as answer:
                return bytes(answer.read())

        before = _cpu(agent) + _cpu(run.pid)  # the front end makes the page from what the agent received
        page = _median(get)
        told = (_cpu(agent) + _cpu(run.pid) - before) / _ROUNDS
        _line(nodes, "a run", series, seconds, used, page, told, len(get()))
        run.stdin.close()
        run.stdout.read()


def _line(
    nodes: int, what: str, series: int, asked: float, asked_cpu: float, page: float, page_cpu: float, size: int
) -> None:
    print(
        f"{nodes:5}  {what:6}  {series:7}  {asked * 1000:9.0f}  {asked_cpu * 1000:10.0f}"
        f"  {page * 1000:7.0f}  {page_cpu * 1000:8.0f}  {size / 1e6:4.1f}",
        flush=True,
    )


def _fed(nodes: int, record: str) -> None:
    told, families = msgspec.msgpack.decode(Path(record).read_bytes())
    answers, pages = [], []
    for number in range(nodes):
        host = {"host": f"node-{number}"}
        answers.append(msgspec.msgpack.encode([(name, {**tags, **host}, *points) for name, tags, *points in told]))
        pages.append(
            msgspec.msgpack.encode(
                [(*family, [line.replace("node-0", host["host"]) for line in lines]) for *family, lines in families]
            )
        )

    def merge(told: list[bytes]) -> bytes:
        """Merge replies as the agent that receives a query does."""
        return msgspec.msgpack.encode(joined(told))

    def question() -> None:
        merged = merge(answers)

        def answer(asked: Request[Any], *_: object) -> Any:
            return msgspec.msgpack.decode(merged, type=answer_type(type(asked)))

        analysis.ask = answer  # type: ignore[attr-defined, assignment]
        AnalysisClient().get_data("all")

    async def ask_all(request: Request[Answer], /) -> Answer:
        return cast(Answer, msgspec.msgpack.decode(merge(pages), type=answer_type(type(request))))

    async def ask_for_page() -> bytes:
        os.environ["DRAGON_TELEMETRY_TOKEN"] = "benchmark"
        here = ("127.0.0.1", 0)
        asked = http.Request("/metrics", {}, {"authorization": "Bearer benchmark"}, (here, here))
        return (await page_for(ask_all)(asked)).body

    def page() -> bytes:
        return asyncio.run(ask_for_page())

    size, series = len(page()), sum(len(msgspec.msgpack.decode(answer)) for answer in answers)
    rendered = _median(page)
    _line(nodes, "fed", series, _median(question), _median(lambda: merge(answers)), rendered, rendered, size)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="for which an agent is watched (default: 20)")
    parser.add_argument("--processes", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--nodes", type=int, nargs="*", default=[4, 16])
    parser.add_argument("--fed", type=int, nargs="*", default=[64, 256])
    parser.add_argument("--per-node", type=int, default=64, help="processes of each node in the second table")
    parser.add_argument("--answer", type=int, help=argparse.SUPPRESS)  # the options with which the runs are started
    parser.add_argument("--record", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        _answer(arguments.answer, arguments.per_node, arguments.record)
        return
    _cost(arguments.seconds, arguments.processes)
    with tempfile.TemporaryDirectory() as folder:
        record = str(Path(folder, "answers"))
        print(f"\n{'':24}question of the last {_WINDOW:.0f} s  page for Prometheus")
        print("nodes  asked    series  ms in all  ms of CPU  ms in all  ms of CPU    MB")
        for nodes in arguments.nodes:
            _of_a_run(nodes, arguments.per_node, record if nodes == max(arguments.nodes) else "")
        for nodes in arguments.fed:
            _fed(nodes, record)


if __name__ == "__main__":
    main()
