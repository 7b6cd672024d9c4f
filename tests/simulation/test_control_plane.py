"""The control plane in a deterministic simulation: what seeds find, and whether they would find faults."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dragon.agent.groups import Group
from dragon.agent.wire.links import Links
from dragon.control import Control
from dragon.launcher.frontend import FrontEnd
from dragon.runtime.rpc import Session
from simulation.loop import DeadlockError, Loop
from simulation.runs import report, simulate
from simulation.wire import Frame, Wire
from simulation.wire import Session as WireSession

SEEDS, PARTS = 300, 6
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_finds_anything(part: int) -> None:
    found = [line for seed in range(part, SEEDS, PARTS) for line in report(seed, simulate(seed))]
    assert not found, "\n".join(found)


def test_a_seed_gives_the_same_trace_in_another_process() -> None:
    for seed in (3, 17, 40):
        here = simulate(seed)
        command = [sys.executable, "-m", "simulation", "--seed", str(seed), "--last", "1000000"]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PYTHONHASHSEED": str(seed)}
        there = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        assert there.stdout.splitlines() == here.trace
        assert len(here.trace) > 5
    assert simulate(3).trace != here.trace


def test_a_deadlock_names_the_tasks_that_wait() -> None:
    loop = Loop(0)

    async def wait_for_nothing() -> None:
        await asyncio.Event().wait()

    waiting = loop.create_task(wait_for_nothing())
    with pytest.raises(DeadlockError, match="waits in Event"):
        loop.run_until_complete(waiting)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(waiting)
    loop.close()


# ---- faults that were put in on purpose


def lose_a_reply(session: Session, number: int, value: Any, error: BaseException | None) -> None:
    if number % 10 != 7:
        answer(session, number, value, error)


def forget_waiters(session: Session, before: float) -> list[asyncio.Future[Any]]:
    end_epochs(session, before)
    return []


def acknowledge_before_it_is_received(control: Control, body: bytes) -> int:
    send_body(control, body)
    if control._sent:
        control._sent.pop()
        control._dropped += 1
    return 0


def handle_twice(wire: Wire, session: WireSession, frame: Frame) -> bool:
    if frame.number <= session.handled:
        wire._tell("Control", session.node, session.epoch, text=frame.message)
        return True
    return False


def send_kept_frames_once(wire: Wire, session: WireSession, epoch: int, *rest: Any) -> None:
    session.sent.clear()
    begin_epoch(wire, session, epoch, *rest)


def tell_all_but_the_last(front_end: FrontEnd, index: int, reason: str) -> None:
    deaf = front_end.alive[max(front_end.alive)]
    with mock.patch.object(deaf, "send"):
        on_lost(front_end, index, reason)


def fail_at_once(links: Links, node: int, *rest: Any) -> None:
    session = links._sessions.get(node)
    links._fail(node, session.end_epochs(float("inf")) if session is not None else [], "the connection broke")
    broken(links, node, *rest)


def nothing(*_: Any) -> None:
    """Do nothing."""


answer, end_epochs, send_body = Session._answer, Session.end_epochs, Control._send_body
begin_epoch, on_lost, broken = Wire._begin_epoch, FrontEnd._on_lost, Links._broken

FAULTS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "a reply is lost": (Session, "_answer", lose_a_reply),
    "a waiter is forgotten": (Session, "end_epochs", forget_waiters),
    "an acknowledgement before it is received": (Control, "_send_body", acknowledge_before_it_is_received),
    "a frame that is sent again is handled twice": (Wire, "_is_known", handle_twice),
    "a kept frame is not sent again": (Wire, "_begin_epoch", send_kept_frames_once),
    "a node is not told of a loss": (FrontEnd, "_on_lost", tell_all_but_the_last),
    "requests fail when a connection is reset": (Links, "_broken", fail_at_once),
    "a broken connection is not made again": (Links, "_repair", nothing),
    "a group is not told of a loss": (Group, "node_lost", nothing),
    "a replaced connection does not go on": (Control, "replace", nothing),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    owner, name, wrong = FAULTS[fault]
    with mock.patch.object(owner, name, wrong):
        assert any(simulate(seed).failures for seed in range(SEEDS))
