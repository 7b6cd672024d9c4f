"""A record of what was placed where, for `dragon plan`: one line of JSON for each placement, in the file that
DRAGON_PLAN names."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dragon.infrastructure import variables
from dragon.runtime.nodes import own_node
from dragon.runtime.placement import Placed

__all__ = ["PlanRecord", "name_of", "note", "note_head", "read_plan"]


class PlanRecord(msgspec.Struct, kw_only=True):
    """One placement. `cpus` are numbered as the node claims them, none means all; `gpus` is what the environment gets.

    `rank` and `group` are those of a member of a group or pool, `puid` is 0 where none is given yet; `policy` is the
    level that chose the node: "template", "group", "thread" or "global".
    """

    name: str
    target: str
    host_name: str
    node: int
    cpus: list[int] = []
    gpus: dict[str, str] = {}
    policy: str = "global"
    puid: int = 0
    rank: int | None = None
    group: str = ""


def note(placed: Placed, name: str, target: str, puid: int = 0) -> None:
    """Add a placement to the record, if one is kept. Raises OSError where it cannot be written."""
    path = os.environ.get(variables.PLAN)
    if not path:
        return
    record = PlanRecord(
        name=name,
        target=target,
        host_name=placed.node.host_name,
        node=placed.node.index,
        cpus=placed.cpus,
        gpus={key: value for key, value in placed.environment.items() if key != variables.POLICY},
        policy=placed.source,
        puid=puid,
        rank=placed.rank,
        group=placed.group,
    )
    # One write of a whole line at the end of the file: processes do not mix theirs.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, msgspec.json.encode(record) + b"\n")
    finally:
        os.close(file)


def note_head(command: Sequence[str], puid: int) -> None:
    """The same for the head process, which is where it is."""
    if os.environ.get(variables.PLAN):
        program = next((word for word in command[1:] if word.endswith(".py")), command[0])
        note(Placed(own_node(), [], {}), "head", os.path.basename(program), puid)


def name_of(target: Callable[..., Any] | str | None) -> str:
    """A target as a plan shows it."""
    if target is None or isinstance(target, str):
        return os.path.basename(target or "")
    while isinstance(target, functools.partial):
        target = target.func
    return str(getattr(target, "__qualname__", type(target).__name__))


def read_plan(path: str | Path) -> list[PlanRecord]:
    """The placements of a record, in order; none if nothing was placed."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=PlanRecord) for line in lines]
