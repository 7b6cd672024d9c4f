"""Records placements for `dragon plan`: one line of JSON for each, in the file that DRAGON_PLAN names."""

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


class PlanRecord(msgspec.Struct, kw_only=True):
    """One placement. `cpus` are numbered as by the node, empty for all; `gpus` are the variables that select GPUs.
    `rank` and `group` are those of a member of a group or pool, `puid` is 0 if none is assigned yet; `policy` is the
    level that chose the node: "template", "group", "thread" or "global"."""

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
    """Add a placement to the record, if DRAGON_PLAN is set. Raises OSError if it cannot be written."""
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
    # One write of a whole line at the end of the file, so that lines of several processes are not mixed.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, msgspec.json.encode(record) + b"\n")
    finally:
        os.close(file)


def note_head(command: Sequence[str], puid: int) -> None:
    """Add the head process to the record, on its own node."""
    if os.environ.get(variables.PLAN):
        program = next((word for word in command[1:] if word.endswith(".py")), command[0])
        note(Placed(own_node(), [], {}), "head", os.path.basename(program), puid)


def name_of(target: Callable[..., Any] | str | None) -> str:
    """Return the name of a target in a plan."""
    if target is None or isinstance(target, str):
        return os.path.basename(target or "")
    while isinstance(target, functools.partial):
        target = target.func
    return str(getattr(target, "__qualname__", type(target).__name__))


def read_plan(path: str | Path) -> list[PlanRecord]:
    """Return the placements of a record, in order; an empty list if there is no record."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=PlanRecord) for line in lines]
