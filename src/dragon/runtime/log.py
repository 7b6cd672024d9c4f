"""The runtime's own log, on stderr."""

from __future__ import annotations

import logging
import os
import sys

from dragon.infrastructure import variables

__all__ = ["runtime_log"]


def runtime_log(name: str) -> logging.Logger:
    """The log of one part of the runtime, at the level that DRAGON_LOG_LEVEL asks for."""
    root = logging.getLogger("dragon")
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("dragon %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.propagate = False
        root.setLevel(os.environ.get(variables.LOG_LEVEL, "WARNING"))
    return root.getChild(name)
