"""The commands that start agents."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

import pytest
from meeting import asynchronously

from dragon.launcher.base import Starter


def test_stopping_a_command_that_has_just_ended_raises_no_error() -> None:
    async def run() -> int | None:
        starter = await Starter.run("ssh to a host", ["sh", "-c", "exit 3"], "")
        # It has ended, and the loop has had no turn to hear of it.
        with contextlib.suppress(ChildProcessError):  # a thread of asyncio's was there first
            os.waitid(os.P_PID, starter.process.pid, os.WEXITED | os.WNOWAIT)
        await starter.stop(0.0)
        return starter.process.returncode

    assert asynchronously(run()) == 3


def test_the_error_about_a_command_that_ends_before_its_input_has_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    start = asyncio.create_subprocess_exec

    async def start_late(*words: str, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*words, **options)
        await process.wait()
        await asyncio.sleep(0.05)
        return process

    async def run() -> str:
        starter = await Starter.run("ssh to a host", ["sh", "-c", "echo no route; exit 3"], "a token")
        return await starter.failed()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_late)
    assert asynchronously(run()) == "ssh to a host ended with code 3:\nno route"
