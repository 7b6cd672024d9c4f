"""The reading of processes: a few at a time, round-robin."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragon.agent.processes.registry import Known
from dragon.agent.telemetry import sampler as process_source
from dragon.agent.telemetry.sampler import ProcessSource
from dragon.agent.telemetry.seen import Seen
from dragon.agent.telemetry.service import History, families
from dragon.infrastructure.metrics import PROCESS_STATES, Kind, Sample, tags_of

Start = Callable[..., list[Known]]
WaitUntil = Callable[[Callable[[], object]], None]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a number of processes."""
    started: list[subprocess.Popen[bytes]] = []

    def start_some(count: int, *command: str) -> list[Known]:
        first = len(started)
        started.extend(subprocess.Popen(command or ("sleep", "100")) for _ in range(count))
        return [
            Known(puid, process.pid, f"crowd-{puid}", parent=0, group=1, record=(0, 0, 0))
            for puid, process in enumerate(started[first:], first + 1)
        ]

    yield start_some
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the time limits so that only the minimum number of processes is read."""
    monkeypatch.setattr(process_source, "_SHARE", 0)
    monkeypatch.setattr(process_source, "_FIRST_CPU_S", 0)


def of(samples: list[Sample], name: str, tag: str = "puid") -> dict[str, float]:
    return {dict(sample.tags)[tag]: sample.value for sample in samples if sample.name == name}


@pytest.mark.usefixtures("no_time")
def test_many_processes_are_read_a_few_at_a_time_and_round_robin(start: Start) -> None:
    source, seen = ProcessSource(), Seen(processes=start(20))
    read = [set(of(source.read(seen), "process_memory")) for _ in range(5)]
    assert [len(puids) for puids in read] == [8] * 5
    assert read[0] | read[1] | read[2] == {str(puid) for puid in range(1, 21)}
    assert read[0] & read[1] == set()


@pytest.mark.usefixtures("no_time")
def test_the_memory_of_a_group_is_the_sum_of_the_last_values_of_its_members(start: Start) -> None:
    source, seen = ProcessSource(), Seen(processes=start(20))
    memory: dict[str, float] = {}
    for _ in range(4):
        samples = source.read(seen)
        memory |= of(samples, "process_memory")
        assert of(samples, "group_memory", "group") == {"crowd": sum(memory.values())}
    assert len(memory) == 20


def test_prometheus_gets_processes_that_were_read_a_while_ago() -> None:
    history = History()
    for name, ago in (("process_memory", 20), ("process_memory", 40), ("load_average", 20), ("load_average", 2)):
        history.add(name, tags_of(ago=ago), Kind.GAUGE, 1000 - ago, 1)
    found = {family.name: family.samples for family in families(history, now=1000, age=5)}
    assert found == {
        "dragon_process_resident_memory_bytes": [("", {"ago": "20"}, 1)],
        "dragon_node_load1": [("", {"ago": "2"}, 1)],
    }


def test_ended_processes_are_skipped(start: Start) -> None:
    source, processes = ProcessSource(), start(3)
    gone = Known(9, 2**22 + 1, "gone", parent=0, group=0, record=(0, 0, 0))
    assert set(of(source.read(Seen(processes=[gone, *processes])), "process_memory")) == {"1", "2", "3"}
    assert set(of(source.read(Seen(processes=processes[:2])), "process_memory")) == {"1", "2"}


def test_the_load_of_a_process_is_that_since_its_last_reading(start: Start) -> None:
    source = ProcessSource()
    seen = Seen(processes=[*start(1, "sh", "-c", "while :; do :; done"), *start(1)])
    assert of(source.read(seen), "process_cpu_percent") == {}
    time.sleep(0.5)
    samples = source.read(seen)
    busy, idle = (of(samples, "process_cpu_percent")[puid] for puid in "12")
    assert idle < busy < 110  # which has whatever other processes leave
    assert idle < 10
    assert of(samples, "process_state")["2"] == PROCESS_STATES.index("sleeping")


def test_a_program_with_any_name_can_be_read(start: Start, tmp_path: Path, wait_until: WaitUntil) -> None:
    sleep = shutil.which("sleep")
    assert sleep is not None
    program = tmp_path / "a) R 1 (b"
    shutil.copy(sleep, program)
    source, seen = ProcessSource(), Seen(processes=start(1, str(program), "100"))

    def memory() -> float:
        (found,) = of(source.read(seen), "process_memory").values()
        return found

    wait_until(lambda: memory() > 2**16)  # it has none yet at its very beginning
    assert memory() < 2**28
