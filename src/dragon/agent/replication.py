"""Shards that several nodes keep.

The first of a shard's holders decides: it does every write itself, in its order, has the others do the same, and
answers when all have. When it is lost the next one goes on. A holder that is lost is replaced by a node that has none
yet: it is given all entries, and counts from then on. What is asked for again, because an answer did not arrive, is
done once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from dragon.agent.answers import Answered, Answers, Identity, Reply
from dragon.agent.followers import Followers, Pending
from dragon.agent.peers import Peers
from dragon.agent.shard_operations import OPERATIONS
from dragon.infrastructure.ddict_errors import DDictError, DDictMovedError
from dragon.infrastructure.errors import DestroyedError
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel
from dragon.runtime.log import runtime_log
from dragon.runtime.shard import Shard

__all__ = ["REPLICATION", "Copies", "Replication"]

log = runtime_log("shards")

REPLICATION = frozenset({"_apply", "_load", "_holders"})
_TOGETHER = 2**20  # bytes of entries that a new holder is sent at a time


class Copies(Protocol):
    """What this node knows of who holds what."""

    def holders(self, number: str, manager: int) -> list[int]: ...
    def set_holders(self, number: str, manager: int, holders: list[int]) -> None: ...
    def held(self) -> Iterator[tuple[str, Shard]]: ...


class Replication:
    """What of the service concerns replicas; used by its thread only."""

    def __init__(
        self,
        peers: Peers,
        copies: Copies,
        own_name: Name,
        way_to: Callable[[int, Name], Channel],
        later: Callable[[Callable[[], object]], None],
    ) -> None:
        self._peers = peers
        self._copies = copies
        self._followers = Followers(peers, own_name, way_to, later, self._give_up)
        self._answers = Answers()
        self._heard: dict[int, int] = {}  # the last number of each node whose copies are kept here
        self._failed: dict[tuple[int, int], Exception] = {}

    # ---- the holder that decides

    def write(
        self,
        shard: Shard,
        number: str,
        identity: Identity | None,
        operation: str,
        arguments: list[Any],
        buffers: list[Any],
        reply: Reply,
    ) -> None:
        """Do a write here and on every other holder, then answer; one that was done already is answered again."""
        manager = shard.settings.manager
        try:
            first = self._copies.holders(number, manager)[0]
        except LookupError as error:
            raise DDictMovedError(f"{shard.where} counts no more: {error}") from error
        if first != self._peers.index:
            raise DDictMovedError(f"{shard.where} is decided about on node {first}")
        answered = self._answers.find(identity)
        if answered is None:
            answered = self._do((number, manager), shard, identity, operation, arguments, buffers)
        elif answered.everywhere:
            answered.tell(reply)
            return
        elif answered.waiting:
            answered.waiting.append(reply)
            return
        # Else it was done as the holder that decided then had it; whether others have done it is not known.
        answered.waiting.append(reply)
        self._to_others(number, manager, "_apply", (operation, arguments, identity), buffers, answered.is_everywhere)

    def _do(
        self,
        whose: tuple[str, int],
        shard: Shard,
        identity: Identity | None,
        operation: str,
        arguments: list[Any],
        buffers: list[Any],
    ) -> Answered:
        answer: list[Any] = []

        def keep(value: Any, found: list[Any], *, as_bytes: bool = False) -> None:
            answer.extend((value, found))

        OPERATIONS[operation](shard, arguments, buffers, keep)
        answered = Answered(whose, *answer)
        self._answers.add(identity, answered)
        return answered

    def _to_others(
        self, number: str, manager: int, operation: str, arguments: Any, buffers: list[Any], reply: Callable[[], None]
    ) -> None:
        others = self._copies.holders(number, manager)[1:]
        if not others:
            reply()
            return
        pending = Pending(set(others), reply)
        for node in others:
            self._followers.send(node, (number, manager), operation, arguments, buffers, pending)

    def acknowledged(self, which: int, value: Any, error: Any) -> None:
        """Another holder has done what it was sent, or could not."""
        found = self._followers.acknowledged(which)
        if found is None:
            return
        node, sent = found
        if error is None:
            sent.pending.done(node)
        else:
            self._give_up(node, sent.shard, error[1], [sent.pending])

    def _give_up(self, node: int, shard: tuple[str, int], why: str, waiting: list[Pending] | None = None) -> None:
        """A node's copy differs from here on. Those who wait for it are answered once every other holder knows that."""
        released = [*(waiting or []), *(sent.pending for sent in self._followers.take(node, shard))]

        def release() -> None:
            for pending in released:
                pending.done(node)

        try:
            holders = self._copies.holders(*shard)
        except LookupError:
            holders = []  # the dictionary was destroyed, or is somewhere else by now
        if node not in holders:
            release()
            return
        log.error("node %d cannot keep its copy of manager %d (%s); it is given up", node, shard[1], why)
        self._drop(*shard, node)
        state = (self._copies.holders(*shard), None)
        self._to_others(*shard, "_holders", state, [], release)
        # It may be there, and its readers are to know as well.
        if node not in self._peers.lost:
            self._followers.send(node, shard, "_holders", state, [], Pending({node}))

    # ---- the others

    def do(
        self, shard: Shard, dictionary: str, which: int, sender: int, operation: str, arguments: list[Any], buffers: Any
    ) -> None:
        """What the holder that decides has sent, if that was not done already."""
        if which <= self._heard.get(sender, 0):
            if (sender, which) in self._failed:
                raise self._failed[sender, which]
            return
        self._heard[sender] = which
        try:
            self._do_new(shard, (dictionary, shard.settings.manager), operation, arguments, buffers)
        except Exception as error:
            self._failed[sender, which] = error
            raise

    def _do_new(
        self, shard: Shard, whose: tuple[str, int], operation: str, arguments: list[Any], buffers: list[Any]
    ) -> None:
        if operation == "_apply":
            done, given, identity = arguments
            if self._answers.find(identity) is None:
                self._do(whose, shard, identity, done, given, buffers).forget_large()
        elif operation == "_load":
            shard.load(arguments[0], buffers)
        else:
            holders, state = arguments
            if state is not None:
                newest, frozen, chosen, answers = state
                shard.take_over(newest, frozen, chosen)
                self._answers.take_over(whose, answers)
            self._copies.set_holders(*whose, holders)

    # ---- losses

    def link_broken(self, node: int) -> None:
        """The connection to a node that may well live is gone."""
        self._followers.link_broken(node)

    def node_lost(self, node: int) -> None:
        """Whatever waits for that node waits no more; what it held is copied to another one."""
        for number, shard in list(self._copies.held()):
            self._drop(number, shard.settings.manager, node)
        for sent in self._followers.node_lost(node):
            sent.pending.done(node)
        for key in [key for key in self._failed if key[0] == node]:
            del self._failed[key]
        for number, shard in list(self._copies.held()):
            try:
                self._recruit(number, shard)
            except (DDictError, DestroyedError, ConnectionError, TimeoutError, RuntimeError) as error:
                log.warning("%s has fewer copies than it should have: %s", shard.where, error)

    def _drop(self, number: str, manager: int, node: int) -> None:
        holders = self._copies.holders(number, manager)
        if node in holders:
            self._copies.set_holders(number, manager, [holder for holder in holders if holder != node])

    def _recruit(self, number: str, shard: Shard) -> None:
        settings = shard.settings
        whose = (number, settings.manager)
        holders = self._copies.holders(*whose)
        if holders[:1] != [self._peers.index]:
            return
        free = [node for node in self._peers.active() if node not in holders]
        for node in free[: len(settings.holders) - len(holders)]:
            made = {**msgspec.to_builtins(settings), "folder": "", "holders": settings.holders}
            self._followers.ask(node, "shards.create", {"number": number, "settings": made, "node": node})
            self._followers.reach(node)
            for names, entries in shard.export(_TOGETHER):
                self._followers.send(node, whose, "_load", (names,), entries, Pending({node}), keep=False)
            holders = [*holders, node]
        self._copies.set_holders(*whose, holders)
        state = (shard.newest, shard.is_frozen, shard.is_chosen, self._answers.of(whose))
        self._to_others(*whose, "_holders", (holders, state), [], lambda: None)
