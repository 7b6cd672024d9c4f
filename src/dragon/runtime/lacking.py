"""Warns once, in one warning, of devices that a policy asks for and a node lacks; with --strict they are an error."""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from dragon.infrastructure import variables
from dragon.infrastructure.errors import PolicyError

if TYPE_CHECKING:
    from dragon.infrastructure.node_desc import NodeDescriptor

# The devices that were reported already, by node and kind; and those to report at the end of a block.
_told: dict[tuple[str, str], set[float]] = {}
_gathered: dict[str, tuple[NodeDescriptor, dict[str, set[float]]]] = {}
_gathering = False
_MOST_NAMES = 4
# What stands between the user's line and the runtime's.
_LIBRARIES = ("dragon.", "contextlib", "multiprocessing.", "concurrent.", "threading")
_PACKAGE = os.path.dirname(os.path.dirname(__file__))


def note_missing(node: NodeDescriptor, **devices: list[float]) -> None:
    """Warn of devices that the node lacks, each once. Raises PolicyError with --strict."""
    if not any(devices.values()):
        return
    if variables.strict():
        raise PolicyError(_text([(node, {kind: set(numbers) for kind, numbers in devices.items()})]))
    _, gathered = _gathered.setdefault(node.host_name, (node, {}))
    for kind, numbers in devices.items():
        told = _told.setdefault((node.host_name, kind), set())
        gathered.setdefault(kind, set()).update(set(numbers) - told)
        told.update(numbers)
    if not _gathering:
        _tell()


@contextmanager
def one_warning() -> Iterator[None]:
    """Warn once, at the end of the block, of all devices that the placements in it lack."""
    global _gathering
    _gathering = True
    try:
        yield
    except BaseException:
        _gathered.clear()
        raise
    finally:
        _gathering = False
    _tell()


def _tell() -> None:
    lacks = [(node, kinds) for node, kinds in _gathered.values() if any(kinds.values())]
    _gathered.clear()
    if lacks:
        warn_user(_text(lacks) + "; affinities are cut to what exists")


def _text(lacks: list[tuple[NodeDescriptor, dict[str, set[float]]]]) -> str:
    """Return the text of the warning. Nodes that lack the same devices are listed together."""
    hosts: dict[str, list[str]] = {}
    for node, kinds in lacks:
        hosts.setdefault(_lack(node, kinds), []).append(node.host_name)
    return "; ".join(f"{_all_of(names)} {lack}" for lack, names in hosts.items())


def _all_of(names: list[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} has"
    first = ", ".join(names[:_MOST_NAMES])
    return f"{first} and {len(names) - _MOST_NAMES} more have" if len(names) > _MOST_NAMES else f"{first} have"


def _lack(node: NodeDescriptor, missing: dict[str, set[float]]) -> str:
    there: dict[str, Collection[float]] = {"CPUs": node.cpus, "GPUs": node.gpus}
    return " and ".join(
        f"no {kind} {listed(numbers)} (there are {listed(there[kind]) or 'none'})"
        for kind, numbers in missing.items()
        if numbers
    )


def listed(numbers: Collection[float]) -> str:
    """Return numbers as text such as "1, 2, 5-7"."""
    result: list[str] = []
    for _, run in itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        result.append(f"{members[0]}-{members[-1]}" if len(members) > 2 else ", ".join(str(m) for m in members))
    return ", ".join(result)


def warn_user(text: str) -> None:
    """Issue a RuntimeWarning at the line of the user's program that led here."""
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and (
        frame.f_globals.get("__name__", "").startswith(_LIBRARIES) or frame.f_code.co_filename.startswith(_PACKAGE)
    ):
        level, frame = level + 1, frame.f_back
    if frame is None:  # a thread or process of the runtime
        from dragon.runtime.log import runtime_log  # not loaded before: every module here makes every fork dearer

        runtime_log("placement").warning("%s", text)
    else:
        warnings.warn(text, RuntimeWarning, stacklevel=level)
