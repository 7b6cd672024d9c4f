"""Sources that fail or hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from measured import logged

from dragon.agent.telemetry import sampler
from dragon.agent.telemetry.sampler import Sampler, Source
from dragon.agent.telemetry.seen import Seen
from dragon.infrastructure.metrics import Sample

NOTHING = Seen()


@pytest.fixture
def told() -> Iterator[list[str]]:
    with logged() as lines:
        yield lines


class Well:
    name = "one that is well"

    def read(self, seen: Seen) -> list[Sample]:
        return [Sample("load_average", 1.0)]


class Failing:
    name = "one that fails"

    def read(self, seen: Seen) -> list[Sample]:
        raise OSError("no such device")


class Hanging:
    name = "one that hangs"

    def __init__(self) -> None:
        self.calls = 0
        self.end = threading.Event()

    def read(self, seen: Seen) -> list[Sample]:
        self.calls += 1
        self.end.wait(60)
        return []


def sample_until(sources: list[Source], holds: Callable[[list[Sample]], bool]) -> None:
    """Sample every few milliseconds until the samples satisfy a condition."""

    async def run() -> None:
        stored: list[Sample] = []
        samples = Sampler(sources, 0.005, lambda: NOTHING, stored.extend)
        try:
            async with asyncio.timeout(30):
                while not holds(stored):
                    await asyncio.sleep(0.005)
        finally:
            samples.close()

    asyncio.run(run())


def test_a_failing_source_is_reported_once_and_others_continue(told: list[str]) -> None:
    sample_until([Failing(), Well()], lambda stored: len(stored) > 10)
    assert told == ["one that fails cannot be measured: OSError('no such device')"]


def test_a_hanging_source_is_reported_once_and_not_read_again(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_SAMPLE_TIMEOUT_S", 0.02)
    hanging = Hanging()
    # Where processors are busy, the other one may be late, too.
    sample_until([hanging, Well()], lambda stored: len(stored) > 10 and any("hangs" in line for line in told))
    hanging.end.set()
    assert hanging.calls == 1
    [line] = [line for line in told if "hangs" in line]
    assert line.startswith("one that hangs have not been measured for ")
