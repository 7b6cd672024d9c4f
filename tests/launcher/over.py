"""Run a command on the nodes of a launcher, with agents that run plain subprocesses.

Arguments: the request (Wanted, as JSON), options (Options, as JSON), and the command.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import msgspec
import uvloop

from dragon import _core
from dragon.launcher import base
from dragon.launcher.choice import Wanted, carried, choose
from dragon.launcher.frontend import FrontEnd, Options
from dragon.runtime.protocol.agents import StartHead

STAND_IN = Path(__file__).with_name("stand_in.py")


async def run() -> int:
    wanted = Wanted(**json.loads(sys.argv[1]))
    options = msgspec.json.decode(sys.argv[2], type=Options)
    launcher = choose(wanted)
    assert launcher is not None
    # The same command line, with another program.
    python, _m, _dragon, _node, *rest = launcher.command
    launcher.command = [python, os.environ.get("STAND_IN", str(STAND_IN)), *rest]
    head = StartHead(sys.argv[3], sys.argv[4:], carried(), os.getcwd(), _core.current_signals())
    return await FrontEnd(launcher, head, options).run()


if __name__ == "__main__":
    try:
        code = uvloop.run(run())
        if "QUIET" not in os.environ:
            print("code", code, flush=True)
    except base.LaunchError as error:
        sys.exit(f"launch failed: {error}")
