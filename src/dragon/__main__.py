"""`python -m dragon` is the dragon command."""

from __future__ import annotations

from dragon.cli.main import run_and_exit

run_and_exit()
