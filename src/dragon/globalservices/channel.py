"""Channels by number and name, for all processes of the run.

A channel exists while a process has it: the process that made it keeps it until destroy() or its own end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from dragon.channels import Channel
from dragon.globalservices import node
from dragon.infrastructure.channel_desc import ChannelDescriptor, ChannelOptions
from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.policy import Policy
from dragon.runtime.agent_client import ask
from dragon.runtime.arguments import checked_seconds
from dragon.runtime.protocol import objects

__all__ = [
    "ChannelError",
    "create",
    "destroy",
    "get_list",
    "get_refcnt",
    "join",
    "query",
    "release_refcnt",
    "wait",
    "wait_for",
]

_KIND = "channel"
_made: dict[int, Channel] = {}  # the channels that this process keeps, by number


class ChannelError(DragonError):
    """A channel cannot be made, or does not exist."""


def create(
    m_uid: int | None,
    user_name: str = "",
    options: ChannelOptions | None = None,
    soft: bool = False,
    puid_override: int | None = None,
    policy: Policy | None = None,
) -> ChannelDescriptor:
    """Make a channel and return its descriptor.

    Args:
        m_uid: the number of a default pool (facts.default_pool_muid_from_index()): the channel is on its node. For
            another pool, or None, it is on this node.
        user_name: the name by which others look it up.
        options: options with its capacity.
        soft: return the existing channel of that name, if there is one.
        policy: a policy that names the node, which has precedence over `m_uid`.

    Raises ChannelError if the name is taken.
    """
    if soft and user_name:
        with contextlib.suppress(ChannelError):
            return query(user_name)
    for one in node.query_all() if policy is None else ():
        if one.index == m_uid:
            policy = Policy(placement=Policy.Placement.HOST_ID, host_id=one.h_uid)
    local = getattr(options, "local_opts", None)
    channel = Channel(None, 0, getattr(local, "block_size", None), getattr(local, "capacity", None), policy=policy)
    try:
        found = ask(objects.CreateNamedObject(_KIND, user_name, channel.node, channel.serialize(), []))
    except ValueError as error:
        raise ChannelError(str(error)) from error
    channel.cuid = found.number
    _made[found.number] = channel
    return _described(found)


def _described(found: objects.NamedObject) -> ChannelDescriptor:
    sdesc, state = found.serialized, ChannelDescriptor.State.DEAD
    if found.alive:
        channel = Channel.attach(sdesc)
        channel.cuid = found.number
        sdesc, state = channel.serialize(), ChannelDescriptor.State.ACTIVE
    return ChannelDescriptor(found.node, found.number, found.name, found.node, state, sdesc)


def query(identifier: int | str, *, inc_refcnt: bool = False) -> ChannelDescriptor:
    """Return the channel of that number or name. Raises ChannelError if there is none."""
    try:
        return _described(ask(objects.FindNamedObject(_KIND, identifier)))
    except LookupError as error:
        raise ChannelError(str(error)) from error
    except DragonError as error:
        raise ChannelError(f"channel {identifier!r} has ended: no process has it any more ({error})") from error


def get_list() -> list[int]:
    """Return the numbers of the channels that were not destroyed."""
    return ask(objects.ListNamedObjects(_KIND))


def destroy(identifier: int | str, *, just_decref: bool = False) -> None:
    """Destroy a channel for all processes; with `just_decref`, only release it in this process. Raises ChannelError."""
    if just_decref:
        release_refcnt(identifier)
        return
    found = query(identifier)
    if found.state == ChannelDescriptor.State.DEAD:
        raise ChannelError(f"channel {identifier!r} was destroyed")
    Channel.attach(found.sdesc).destroy()
    ask(objects.ForgetNamedObject(_KIND, found.c_uid))
    _made.pop(found.c_uid, None)


def wait_for(
    identifier: int | str,
    predicate: Callable[[ChannelDescriptor], bool],
    timeout: float | None = None,
    tries: int = 1,
    interval: float = 0.1,
) -> ChannelDescriptor:
    """Wait until there is a channel for which `predicate` is true, and return it. Checks every `interval` seconds.

    Raises TimeoutError after `timeout` seconds, or after `tries` checks if that is None.
    """
    timeout = checked_seconds("timeout", timeout)
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        with contextlib.suppress(ChannelError):
            if predicate(found := query(identifier)):
                return found
        tries -= 1
        if tries <= 0 if end is None else time.monotonic() >= end:
            raise TimeoutError(f"channel {identifier!r} did not reach the expected state in time")
        time.sleep(interval)


def wait(identifier: int | str, state: int = ChannelDescriptor.State.DEAD, **options: Any) -> ChannelDescriptor:
    """Wait until the channel is in that state, and return it. `options` are those of wait_for()."""
    return wait_for(identifier, lambda found: found.state == state, **options)


def join(identifier: int | str, timeout: float | None = None) -> ChannelDescriptor:
    """Wait until the channel was made, and return it. Raises TimeoutError after `timeout` seconds."""
    return wait(identifier, ChannelDescriptor.State.ACTIVE, timeout=10**9 if timeout is None else timeout)


def get_refcnt(identifier: int | str) -> None:
    """Keep a channel in this process until release_refcnt(). Raises ChannelError."""
    found = query(identifier)
    _made.setdefault(found.c_uid, Channel.attach(found.sdesc))


def release_refcnt(identifier: int | str) -> None:
    """Release a channel in this process. The channel ends when no process has it any more."""
    _made.pop(query(identifier).c_uid, None)
