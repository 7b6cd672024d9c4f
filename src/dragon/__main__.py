"""Runs the dragon command, for `python -m dragon`."""

from __future__ import annotations

import gc
import sys

if sys.argv[1:3] == ["node", "--join"]:
    gc.disable()  # until the agent serves, as nothing that is imported is garbage
    from dragon.cli.node import main

    sys.exit(main(sys.argv[2:]))  # imported alone, because every process that it forks has the same modules loaded

from dragon.cli.command import run_and_exit

run_and_exit()
