"""The log of the runtime, on stderr."""

from __future__ import annotations

import logging
import os
import sys

from dragon.infrastructure import variables


def runtime_log(name: str) -> logging.Logger:
    """Return the logger of one part of the runtime, with the level in DRAGON_LOG_LEVEL (default: WARNING)."""
    root = logging.getLogger("dragon")
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("dragon %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.propagate = False
        root.setLevel(os.environ.get(variables.LOG_LEVEL, "WARNING"))
    return root.getChild(name)


class Once:
    """Logs each text once, whatever the values in it."""

    def __init__(self, log: logging.Logger, level: int = logging.WARNING) -> None:
        self._log = log
        self._level = level
        self._told: set[str] = set()

    def __call__(self, text: str, *values: object) -> None:
        if text not in self._told:
            self._told.add(text)
            self._log.log(self._level, "%s (this is logged once)", text.format(*values))
