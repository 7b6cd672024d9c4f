"""multiprocessing on top of the runtime: the start method "dragon"."""

from __future__ import annotations

import importlib

from dragon.lazy_modules import submodule

TYPE_CHECKING = False  # see dragon/__init__.py
if TYPE_CHECKING:
    from typing import Any

_WITH_NAMES_OF_DRAGONHPC = ("context", "pool", "process", "queues", "sharedctypes", "synchronize")


def __getattr__(name: str) -> Any:
    for module in _WITH_NAMES_OF_DRAGONHPC if name.startswith("Dragon") else ():
        if found := getattr(importlib.import_module(f"{__name__}.{module}"), name, None):
            return found
    return submodule(__name__, name)
