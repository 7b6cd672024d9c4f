"""Dragon: a distributed runtime for processes, memory and data.

Importing this package registers the start method "dragon" with multiprocessing, changes nothing else and starts
nothing; the runtime starts at its first use.
"""

from __future__ import annotations

import importlib
import os
import sys

from dragon.lazy_modules import submodule

TYPE_CHECKING = False  # for type checkers; the import of typing takes longer than that of this package
if TYPE_CHECKING:
    from typing import Any

    from dragon.data.ddict import DDict
    from dragon.infrastructure.policy import Policy
    from dragon.native.machine import System, current
    from dragon.native.process import ProcessTemplate
    from dragon.native.process_group import ProcessGroup
    from dragon.workflows.batch import Batch

__all__ = [
    "Batch",
    "DDict",
    "Policy",
    "ProcessGroup",
    "ProcessTemplate",
    "System",
    "__version__",
    "current",
    "in_dragon",
]

__version__ = "0.1.0"
"""The version of the package."""

_LAZY = {
    "Batch": "dragon.workflows.batch",
    "DDict": "dragon.data.ddict",
    "Policy": "dragon.infrastructure.policy",
    "ProcessGroup": "dragon.native.process_group",
    "ProcessTemplate": "dragon.native.process",
    "System": "dragon.native.machine",
    "current": "dragon.native.machine",
}


def _is_command() -> bool:
    """Return whether this process is the `dragon` command, which runs no user's code and starts sooner without
    multiprocessing. (What it may fork such processes from, the zygote, installs the start method itself.)"""
    name, *words = getattr(sys, "argv", None) or [""]
    command = os.path.join(os.path.dirname(sys.executable), "dragon")
    if name == "-m":
        return " -m dragon " in f" {' '.join(sys.orig_argv[: len(sys.orig_argv) - len(words)])} "
    return os.path.exists(name) and os.path.exists(command) and os.path.samefile(name, command)


def _patch_multiprocessing() -> None:
    """Make "dragon" the start method of multiprocessing, and with it of torch.multiprocessing, for a program that does
    not choose one itself."""
    import multiprocessing

    multiprocessing.set_start_method("dragon", force=True)


_patch_torch = _patch_multiprocessing

if not _is_command():
    from dragon.mpbridge.context import install

    install()
    if "1" in (os.environ.get("DRAGON_PATCH_MP"), os.environ.get("DRAGON_PATCH_TORCH")):
        _patch_multiprocessing()


def in_dragon() -> bool:
    """Return whether this process belongs to a run."""
    from dragon.runtime.run import in_run

    return in_run()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    return submodule("dragon", name)
