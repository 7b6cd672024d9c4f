"""`python -m dragon` is the dragon command."""

from __future__ import annotations

import sys

if sys.argv[1:3] == ["node", "--join"]:
    from dragon.cli.node import main

    sys.exit(main(sys.argv[2:]))  # with no more modules than it needs: every process that it forks has them too

from dragon.cli.command import run_and_exit

run_and_exit()
