"""The links of two agents in one process, with UCX for large payloads."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from ends import SIZES, Ends, Fabrics, exchange, run
from hypothesis import given, settings
from test_lanes import device

from dragon.agent.wire import ucx as fabric
from dragon.agent.wire.ucx import Ucx

pytest.importorskip("ucxx._lib.libucxx", reason="ucxx is not installed (extra rdma)")
made: list[Ucx] = []


def pair() -> Fabrics:
    # They stay: UCX does not like to be taken apart while what failed is still held by a traceback.
    made[:] = Ucx({"TLS": "tcp"}), Ucx({"TLS": "tcp"})
    return made[0], made[1]


async def greeted(ends: Ends) -> None:
    for _ in range(3):
        await ends.echo()


@settings(max_examples=60)
@given(SIZES)
def test_payloads_of_any_size_arrive_whole_and_in_order(sizes: list[int]) -> None:
    async def test(ends: Ends) -> None:
        await greeted(ends)
        large = await exchange(ends, sizes)
        assert (made[0].sent, made[0].received) == (large, large)

    run(test, pair)


def test_an_idle_fabric_uses_no_processor_time() -> None:
    async def test(ends: Ends) -> None:
        await greeted(ends)
        await ends.echo(None, bytes(2**20))
        before = time.process_time()
        await asyncio.sleep(1)
        assert time.process_time() - before < 0.1

    run(test, pair)


def test_there_is_no_fabric_if_ucx_has_no_transport_for_the_device(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY", "false")
    device(tmp_path, "no_such_device_0", "4: ACTIVE")

    async def test(ends: Ends) -> None:
        assert fabric.open_fabric("", "here", tmp_path) is None

    monkeypatch.setattr(fabric.log.parent, "propagate", True)
    run(test)
    assert "here has no_such_device_0, but the UCX there has no transport for them" in caplog.text
