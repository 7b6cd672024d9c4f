"""Groups of executables by name, which any process of the run can look up, extend and end.

dragon.native.process_group.ProcessGroup does more: Python functions, restarts, MPI jobs, reports of failures.
"""

from __future__ import annotations

import base64
import pickle
import signal
from collections.abc import Sequence
from contextlib import suppress

from dragon.globalservices import process
from dragon.globalservices.process import ProcessCreate, start_process
from dragon.infrastructure.errors import DragonError, NodeLostError
from dragon.infrastructure.group_desc import GroupDescriptor, GroupMember
from dragon.infrastructure.policy import Policy, PolicyError
from dragon.native.process_group import ProcessGroup
from dragon.runtime import placement
from dragon.runtime.agent_client import ask
from dragon.runtime.processes import look_up
from dragon.runtime.protocol import objects
from dragon.runtime.run import this_run

__all__ = [
    "GroupError",
    "add_to",
    "create",
    "create_add_to",
    "destroy",
    "destroy_remove_from",
    "get_list",
    "kill",
    "query",
    "remove_from",
]

Items = Sequence[tuple[int, ProcessCreate | str]]
Messages = list[tuple[int, ProcessCreate]]

_KIND = "group"
_jobs: dict[int, ProcessGroup] = {}  # the MPI jobs that this process started, by the number of their groups


class GroupError(DragonError):
    """A group cannot be made, or does not exist."""


def create(
    items: Items, policy: Policy | None, user_name: str = "", soft: bool = False, pmix_ddict: object = None
) -> GroupDescriptor:
    """Start processes as a group, and return its descriptor.

    Args:
        items: (count, return value of get_create_message()) for each kind of member.
        policy: their placement; a message's own policy has precedence.
        user_name: the name by which others look the group up.
        soft: return the existing group of that name, if there is one.
        pmix_ddict: has no effect.

    Members whose messages have a `pmi` are the ranks of one MPI job, in order; then all must have the same one. Raises
    GroupError if a member cannot be started; those that were started are then killed.
    """
    if soft and not user_name:
        raise GroupError("soft=True needs the user_name of a group")
    if user_name and (known := _known(user_name)) is not None:
        if soft:
            return _described(known)
        raise GroupError(f"a group {user_name!r} already exists in this run")
    messages = _messages(items)
    job = _start_job(messages, policy)
    sets = _start(messages, policy) if job is None else _in_sets(messages, job.puids)
    try:
        made = ask(objects.CreateNamedObject(_KIND, user_name, this_run().node, b"", sets))
    except ValueError as error:  # another process was faster
        _end([puid for puids in sets for puid in puids])
        raise GroupError(f"a group {user_name!r} already exists in this run") from error
    if job is not None:
        _jobs[made.number] = job
    return _described(made, policy)


def _start_job(items: Messages, policy: Policy | None) -> ProcessGroup | None:
    """Start the MPI job that the messages describe; None if they describe none."""
    backends = {message.pmi for _, message in items}
    if backends <= {None}:
        return None
    if len(backends) > 1 or any(item[1].argdata is not None for item in items):
        raise GroupError("all members of an MPI job must have the same pmi=, and no argdata")
    job = ProcessGroup(pmi=backends.pop(), policy=policy, ignore_error_on_exit=True)
    try:
        for count, message in items:
            job.add_process(count, message.template())
        job.init()
        job.start()
    except (AttributeError, OSError, PolicyError, DragonError) as error:
        raise GroupError(f"the MPI job cannot be started: {error}") from error
    return job


def _messages(items: Items) -> Messages:
    """Return the members, of which messages may be in the form of serialize()."""
    found = []
    for item in items:
        count, message = item if isinstance(item, tuple) and len(item) == 2 else (0, None)
        if isinstance(message, str):
            with suppress(ValueError, EOFError, pickle.UnpicklingError):
                message = pickle.loads(base64.b64decode(message))
        if not isinstance(message, ProcessCreate) or count <= 0:
            raise GroupError(f"{item!r} is not (count, what process.get_create_message() gave)")
        found.append((count, message))
    return found


def _in_sets(items: Messages, puids: list[int]) -> list[list[int]]:
    each = iter(puids)
    return [[next(each) for _ in range(count)] for count, _ in items]


def _start(items: Messages, policy: Policy | None) -> list[list[int]]:
    """Start the members and return their puids, those of an item in one list."""
    messages = [message for count, message in items for _ in range(count)]
    members = placement.members("", (Policy.merge(policy, message.policy) for message in messages))
    started: list[int] = []
    try:
        for message, member in zip(messages, members, strict=True):
            placed = placement.place(message.policy, policy, member=member)
            started.append(start_process(message, placed)[0])
    except (AttributeError, OSError, PolicyError, NodeLostError) as error:
        _end(started)
        raise GroupError(f"member {len(started)} of {len(messages)} cannot be started: {error}") from error
    return _in_sets(items, started)


def _end(puids: list[int]) -> None:
    for puid in puids:
        process.kill(puid)
    for puid in puids:
        process.join(puid)


def get_list() -> list[int]:
    """Return the numbers of the groups that were not destroyed."""
    return ask(objects.ListNamedObjects(_KIND))


def query(identifier: int | str) -> GroupDescriptor:
    """Return the group of that number or name. Raises GroupError if there is none."""
    return _described(_find(identifier))


def _known(identifier: int | str) -> objects.NamedObject | None:
    with suppress(LookupError):
        found = ask(objects.FindNamedObject(_KIND, identifier))
        return found if found.alive else None
    return None


def _find(identifier: int | str) -> objects.NamedObject:
    known = _known(identifier)
    if known is None:
        raise GroupError(f"the run has no group {identifier!r}")
    return known


def _described(found: objects.NamedObject, policy: Policy | None = None) -> GroupDescriptor:
    sets = [[_member(puid) for puid in puids] for puids in found.members]
    return GroupDescriptor(GroupDescriptor.State.ACTIVE, found.number, found.name, sets, policy)


def _member(puid: int) -> GroupMember:
    known = look_up(puid)
    return GroupMember(known.state, puid, known.node, known, known.ecode)


def kill(identifier: int | str, sig: int = signal.SIGKILL, hide_stderr: bool = False) -> GroupDescriptor:
    """Send a signal to every member; members that have ended are ignored. Raises GroupError if there is no such
    group."""
    found = _find(identifier)
    for puid in _puids(found):
        process.kill(puid, sig)
    return _described(found)


def destroy(identifier: int | str) -> GroupDescriptor:
    """Kill every member with SIGKILL, and remove the group. Raises GroupError if there is no such group."""
    found = _find(identifier)
    _end(_puids(found))
    described = _described(found)
    ask(objects.ForgetNamedObject(_KIND, found.number))
    if job := _jobs.pop(found.number, None):
        job.close()
    described.state = GroupDescriptor.State.DEAD
    return described


def _puids(found: objects.NamedObject) -> list[int]:
    return [puid for puids in found.members for puid in puids]


def add_to(identifier: int | str, items: Sequence[int | str]) -> GroupDescriptor:
    """Add running processes, by puid or name, to the members. Raises GroupError."""
    return _change(_find(identifier), [_uids(items)], [])


def create_add_to(identifier: int | str, items: Items, policy: Policy | None) -> GroupDescriptor:
    """Start further members, as create() does. Raises GroupError."""
    found = _find(identifier)
    return _change(found, _start(_messages(items), policy), [])


def _change(found: objects.NamedObject, added: list[list[int]], removed: list[int]) -> GroupDescriptor:
    return _described(ask(objects.ChangeMembers(_KIND, found.number, added, removed)))


def remove_from(identifier: int | str, items: Sequence[int | str]) -> GroupDescriptor:
    """Remove processes, by puid or name, from the members; they continue to run. Raises GroupError if one is not a
    member."""
    found = _find(identifier)
    return _change(found, [], _members_of(found, items))


def destroy_remove_from(identifier: int | str, items: Sequence[int | str]) -> GroupDescriptor:
    """Kill members with SIGKILL and remove them from the group. Raises GroupError if one is not a member."""
    _end(_members_of(_find(identifier), items))
    return remove_from(identifier, items)


def _members_of(found: objects.NamedObject, items: Sequence[int | str]) -> list[int]:
    members = _uids(items)
    if strangers := set(members) - set(_puids(found)):
        raise GroupError(f"not members of group {found.name!r}: {sorted(strangers)}")
    return members


def _uids(items: Sequence[int | str]) -> list[int]:
    try:
        return [look_up(item).p_uid for item in items]
    except process.ProcessError as error:
        raise GroupError(str(error)) from None
