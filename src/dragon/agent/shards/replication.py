"""Shards that several nodes keep.

The holders of a replicated shard have an order. The first, the primary, does every write itself and numbers it. Each
holder passes what it did to the next holder, and answers when the next one has answered. So a holder has done all
that the holders behind it have done, and whichever is first after a loss has everything that was answered.

The front end decides which nodes are the holders, and numbers its decisions. A message between holders carries the
number (the epoch) of the decision that its sender knows. A holder obeys it only if it knows the same decision, and
the sender is the holder before it. It drops a message of an older decision: the sender is lost, or sends again once
it knows the newer one. A message of a newer decision waits until that decision is known here. So a holder that was
declared lost, or that is a holder no more, changes nothing and answers nobody: for an answer it would need those of
the holders behind it. If a holder does not do what it is sent, the holder before it does not drop it, but asks the
front end for a decision, and answers nobody until there is one.

The last holder replaces a lost one: it sends all entries to a node that has no copy, passes on the writes that come
meanwhile, and asks the front end to decide that the node is a holder. A request that is repeated, because its answer
did not arrive, is done once. tests/models/replication.pml is a model of this protocol.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from dragon.agent.shards.answers import Answer, Answered, Answers, Copies, Holding, Whose
from dragon.infrastructure.ddict_errors import DDictMovedError
from dragon.infrastructure.errors import DestroyedError
from dragon.infrastructure.start_request import Name
from dragon.infrastructure.structs import msgspec
from dragon.runtime.handle import Channel
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.agents import Proposal
from dragon.runtime.protocol.shards import CreateShard, ShardChannel
from dragon.runtime.rpc import error_of
from dragon.shards.operations import NOTHING, OPERATIONS, WRITES, Error, Identity, Reply, Request, Result, Tag
from dragon.shards.shard import Shard

if TYPE_CHECKING:
    from dragon.agent.wire.links import Links

log = runtime_log("shards")

_encode = msgspec.msgpack.Encoder().encode
_RECONNECT_S = 0.2  # seconds between two attempts to reach a node
_APPLY, _LOAD, _STATE = "_apply", "_load", "_state"
_COPY_BATCH_BYTES = 2**20  # bytes of entries that a new holder is sent at a time
_RECOPY_S = 3.0  # seconds until shards with too few copies are looked at again, twice as many the next time
_MAX_RECOPY_S = 60.0


@dataclass(eq=False)
class Sent:
    """A message that was not acknowledged yet. If `buffers` is None they were not kept, so it can be sent only once."""

    shard: Whose
    operation: str
    arguments: list[Any]
    buffers: list[Any] | None
    done: Callable[[], None]
    head: bytes


class Followers:
    """Sends this node's operations to the other replicas, in order, and again if a connection broke; used only in the
    thread of the service. Each message has a number, and is kept until the other node acknowledges it, or it is taken.

    `channel_to` opens an outbox to a channel of another node, `later` calls a function here. `on_unreachable` is called
    with a node, a shard about which it was sent something, and the reason why it cannot be reached; it is
    retried anyway. `on_torn` is called with a node and a shard about which it was sent what cannot be sent again.
    """

    def __init__(
        self,
        links: Links,
        own_name: Name,
        channel_to: Callable[[int, Name], Channel],
        later: Callable[[Callable[[], object]], None],
        on_unreachable: Callable[[int, Whose, str], None],
        on_torn: Callable[[int, Whose], None],
    ) -> None:
        self._links = links
        self._own_name = own_name
        self._channel_to = channel_to
        self._later = later
        self._on_unreachable = on_unreachable
        self._on_torn = on_torn
        self._loop = asyncio.get_running_loop()
        self._services: dict[int, Name] = {}
        # Used only here: if one has failed, its messages are sent again before anything else.
        self._channels: dict[int, Channel] = {}
        self._last = 0
        self._sent: dict[int, dict[int, Sent]] = {}  # by node and number
        self._waiting: set[int] = set()  # nodes to which the connection is being made (again)

    def send(
        self,
        node: int,
        shard: Whose,
        operation: str,
        tag: Tag,
        arguments: list[Any],
        buffers: list[Any] | None,
        done: Callable[[], None],
        keep: bool = True,
    ) -> None:
        """Send an operation to another replica. Without `keep` the buffers are valid only during the call."""
        self._last += 1
        head = _encode(Request(self._last, self._own_name, os.getpid(), *shard, operation, arguments, tag=tag))
        kept = buffers if keep else None
        self._sent.setdefault(node, {})[self._last] = Sent(shard, operation, arguments, kept, done, head)
        if node in self._waiting:
            return  # it is sent after the earlier ones
        if node not in self._services:
            self._connect(node)
        else:
            self._put(node, head, buffers or [])

    def _put(self, node: int, head: bytes, buffers: list[Any]) -> bool:
        try:
            if node not in self._channels:
                self._channels[node] = self._channel_to(0, self._services[node])
            self._channels[node]._put_frames(head, buffers, None)
        except DestroyedError:
            self._channels.pop(node, None)
            self._connect(node)
            return False
        except MemoryError:  # it is sent with all unacknowledged messages, once there is memory
            self._waiting.add(node)
            self.after(_RECONNECT_S, partial(self._call, node))
            return False
        return True

    def acknowledged(self, number: int) -> tuple[int, Sent] | None:
        """Return the node and the message of an acknowledged number; None if it was taken back."""
        for node, sent in self._sent.items():
            if number in sent:
                return node, sent.pop(number)
        return None

    def put_back(self, node: int, number: int, sent: Sent) -> None:
        """Keep a message again that a node could not execute."""
        numbered = self._sent[node]
        numbered[number] = sent
        self._sent[node] = dict(sorted(numbered.items()))

    def take(self, shard: Whose) -> list[Sent]:
        """Remove and return the messages about a shard, in order; they are not waited for any more."""
        found = [(number, node) for node, sent in self._sent.items() for number in sent if sent[number].shard == shard]
        return [self._sent[node].pop(number) for number, node in sorted(found)]

    def prepare(self, node: int, request: CreateShard, then: Callable[[BaseException | None], None]) -> None:
        """Have another agent create a shard; `then` is called in this thread with the exception, or None."""

        async def ask() -> Name:
            await self._links.ask(node, request)
            return await self._service_of(node)

        def prepared(asked: Future[Name]) -> None:
            error = asked.exception()
            if error is None:
                self._services[node] = asked.result()
            then(error)

        asked = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        asked.add_done_callback(lambda done: self._later(partial(prepared, done)))

    async def _service_of(self, node: int) -> Name:
        return await self._links.ask(node, ShardChannel(node))

    def propose(self, proposal: Proposal) -> None:
        self._loop.call_soon_threadsafe(self._links.propose, proposal)

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        """Call a function in this thread after that time."""
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, self._later, do)

    # ---- connections

    def link_broken(self, node: int) -> None:
        """Send messages again that may be lost."""
        self._channels.pop(node, None)
        if self._sent.get(node):
            self._connect(node)

    def node_lost(self, node: int) -> None:
        """Stop sending to a node. Its unacknowledged messages are to be taken."""
        self._services.pop(node, None)
        self._channels.pop(node, None)

    def _connect(self, node: int) -> None:
        """Connect (again), while other nodes are served."""
        if node not in self._waiting and node not in self._links.lost:
            self._waiting.add(node)
            self._call(node)

    def _call(self, node: int) -> None:
        asked = asyncio.run_coroutine_threadsafe(self._service_of(node), self._loop)
        asked.add_done_callback(lambda done: self._later(partial(self._connected, node, done)))

    def _connected(self, node: int, asked: Future[Name]) -> None:
        error = asked.exception()
        if node in self._links.lost or (error is not None and not self._sent.get(node)):
            self._waiting.discard(node)
            return
        if error is not None:
            if node in self._links.unreachable:
                for shard in {one.shard for one in self._sent[node].values()}:
                    self._on_unreachable(node, shard, str(error))
            self.after(_RECONNECT_S, partial(self._call, node))
            return
        self._waiting.discard(node)
        self._services[node] = asked.result()
        for shard in {one.shard for one in self._sent.get(node, {}).values() if one.buffers is None}:
            self._on_torn(node, shard)
        for one in list(self._sent.get(node, {}).values()):
            if not self._put(node, one.head, one.buffers or []):
                return


# An operation, its arguments, and the identity of the write.
_Asked = tuple[str, list[Any], Identity | None]


@dataclass(eq=False)
class _Learner:
    """A node that is being given a copy."""

    node: int
    tag: Tag
    begun: bool = False  # operations that are done here are passed on to it
    complete: bool = False


@dataclass(eq=False)
class _Copy:
    """A copy of a shard on this node. `position` is the number of the last operation that was done."""

    position: int = 0
    pending: dict[int, Answered] = field(default_factory=dict)  # done here, but not yet behind; by number
    early: list[Callable[[], None]] = field(default_factory=list)  # messages of a decision that is not known here yet
    failure: Exception | None = None  # why it differs from here on
    doubted: int | None = None  # the holder behind, where its removal was proposed
    learner: _Learner | None = None
    tried: set[int] = field(default_factory=set)  # nodes that could not be given a copy
    filled: Tag | None = None  # the tag with which this copy was filled


class Replication:
    """What the service does for replicated shards. Only the service's thread uses it."""

    def __init__(
        self,
        links: Links,
        copies: Copies,
        own_name: Name,
        channel_to: Callable[[int, Name], Channel],
        later: Callable[[Callable[[], object]], None],
    ) -> None:
        self._links = links
        self._held = copies
        self._later = later
        self._followers = Followers(links, own_name, channel_to, later, self._doubt, self._on_torn)
        self._answers = Answers()
        self._copies: dict[Whose, _Copy] = {}
        self._seen = 0  # the last loss
        self._fills = 0
        self._looks = False
        self._patience = _RECOPY_S

    # ---- the holder that decides

    def ask(self, shard: Shard, request: Request, buffers: list[Any], reply: Answer) -> None:
        """Do an operation here, have every other holder do it, then answer.

        If the operation was done already, its answer is sent again. A read is done here only; it is answered when all
        holders behind have done what came before it and this node is still the primary, so it saw the newest values.
        """
        whose = request.dictionary, request.manager
        try:
            holders = self._held.holding(whose).holders
        except LookupError as error:
            raise DDictMovedError(f"{shard.where} is no longer a valid replica: {error}") from error
        if holders[0] != self._links.index:
            raise DDictMovedError(f"{shard.where} is not the primary, which is on node {holders[0]}")
        answered = self._answers.find(request.identity)
        if answered is not None:
            answered.answer(reply)
        else:
            self._perform(whose, shard, (request.operation, request.arguments, request.identity), buffers, reply)

    def _perform(self, whose: Whose, shard: Shard, asked: _Asked, buffers: list[Any], reply: Answer) -> None:
        """Do an operation, have the holders behind do it, and answer."""
        operation, arguments, identity = asked
        answered = Answered(whose, OPERATIONS[operation](shard, arguments, buffers), waiting=[reply])
        self._answers.add(identity, answered)
        copy = self._copy(whose)
        copy.position += 1
        to, tag = self._next(whose)
        if to is None:
            answered.is_everywhere()
        else:
            copy.pending[copy.position] = answered
            if operation not in WRITES:
                asked, buffers = (NOTHING, [], None), []
            done = partial(self._passed, copy, copy.position)
            self._followers.send(to, whose, _APPLY, tag, [copy.position, *asked], buffers, done)

    def _next(self, whose: Whose) -> tuple[int | None, Tag]:
        """Return the node that is to do next what was done here (None: none is), and the tag to send with it."""
        if self._held.teacher(whose) is not None:
            return None, Tag(0)  # a copy that is not valid yet has none behind it
        holding, learner = self._held.holding(whose), self._copy(whose).learner
        behind = holding.behind(self._links.index)
        if behind is None and learner is not None and learner.begun:
            return learner.node, learner.tag
        return behind, Tag(holding.epoch)

    def _passed(self, copy: _Copy, position: int) -> None:
        """Note that all holders behind have done an operation, or that there are none any more."""
        answered = copy.pending.pop(position, None)
        if answered is not None:
            answered.is_everywhere()

    def acknowledged(self, reply: Reply) -> None:
        """Note that another holder has done what it was sent, or failed to."""
        found = self._followers.acknowledged(reply.number)
        if found is None:
            return
        node, sent = found
        if reply.error is None:
            sent.done()
        else:
            self._followers.put_back(node, reply.number, sent)  # until the front end has decided about that node
            self._doubt(node, sent.shard, reply.error[1])

    # ---- those behind it

    def do(self, shard: Shard, sender: int, request: Request, buffers: list[Any], reply: Answer) -> None:
        """Do what another holder has sent, if it is the holder before this one and both know the same decision."""
        whose, meant, operation = (request.dictionary, request.manager), request.tag, request.operation
        assert meant is not None
        try:
            holding = self._held.holding(whose)
            known = holding.before(self._links.index), Tag(holding.epoch)
        except LookupError:
            teacher = self._held.teacher(whose)
            if teacher is None:
                log.debug("node %d sent an operation to manager %d, but there is no copy of it here", sender, whose[1])
                return
            known = teacher
        if meant.epoch > known[1].epoch:
            again = partial(self.do, shard, sender, request, buffers, reply)
            self._copy(whose).early.append(lambda: _answering(again, reply))
            return
        if (sender, meant) != known:
            text = "dropped an operation of node %d on manager %d: its decision %s is not the one known here, %s"
            log.debug(text, sender, whose[1], meant, known)
            return
        copy = self._copy(whose)
        if operation == _LOAD:
            shard.load(request.arguments[0], buffers)
            reply(Result(), None)
        elif operation == _STATE:
            if copy.filled != meant:
                *state, answers, position = request.arguments
                early, copy.early = copy.early, []
                self._let_go(whose)  # operations on a copy that was here before
                shard.take_over(*state)
                self._answers.take_over(whose, answers)
                self._copies[whose] = _Copy(position, early=early, filled=meant)
            reply(Result(), None)
        else:
            self._apply(shard, whose, copy, request.arguments, buffers, reply)

    def _apply(
        self, shard: Shard, whose: Whose, copy: _Copy, arguments: list[Any], buffers: list[Any], reply: Answer
    ) -> None:
        position, operation, given, identity = arguments

        def acknowledge(result: Result, error: Error | None) -> None:
            reply(Result(), error)  # the holder before this one has no use for the value

        if copy.failure is not None:
            raise copy.failure
        if position <= copy.position:
            if position in copy.pending:
                copy.pending[position].answer(acknowledge)
            else:
                reply(Result(), None)
            return
        try:
            if position != copy.position + 1:
                raise RuntimeError(f"operation {position} came after {copy.position}")
            self._perform(whose, shard, (operation, given, identity), buffers, acknowledge)
        except Exception as error:
            copy.failure = error
            raise

    # ---- decisions

    def decided(self, whose: Whose, holding: Holding) -> None:
        """Note that the front end has decided on other holders of a shard."""
        self._adopt(whose, holding)
        shard = self._held.copy_of(whose)
        if shard is not None:
            self._recruit(whose, shard)

    def _adopt(self, whose: Whose, holding: Holding) -> None:
        teacher = self._held.teacher(whose)
        if teacher is not None and teacher[1].epoch >= holding.epoch:
            return  # it is about a copy that was here before the one that this node is given
        copy = self._copy(whose)
        self._held.hold_since(whose, holding)
        copy.learner = copy.doubted = None
        try:
            behind = self._held.holding(whose).behind(self._links.index)
        except LookupError:
            self._let_go(whose)
            return
        for one in self._followers.take(whose):
            if behind is None or one.operation != _APPLY:
                one.done()
            else:
                self._followers.send(behind, whose, _APPLY, Tag(holding.epoch), one.arguments, one.buffers, one.done)
        early, copy.early = copy.early, []
        for do in early:
            do()

    def _let_go(self, whose: Whose) -> None:
        """Answer the operations under way with an error: whether they are done everywhere will not be known here."""
        self._followers.take(whose)
        copy = self._copies.pop(whose)
        for answered in copy.pending.values():
            answered.fail(error_of(DestroyedError(f"node {self._links.index} no longer keeps manager {whose[1]}")))

    def forget(self, number: str) -> None:
        for whose in [whose for whose in self._copies if whose[0] == number]:
            self._let_go(whose)

    def node_lost(self, node: int, epoch: int) -> None:
        """Stop waiting for a lost node, and give what it held to another node."""
        self._seen = epoch
        self._patience = _RECOPY_S
        self._followers.node_lost(node)
        for whose, _ in list(self._held.held()):
            copy, holding = self._copy(whose), self._held.holding(whose)
            if node in holding.holders:
                self._adopt(whose, holding.without(node, epoch))
            elif copy.learner is not None and copy.learner.node == node:
                self._abandon(whose, copy)
        self.look_after_copies()

    def link_broken(self, node: int) -> None:
        """Note that the connection to a node broke; the node itself may be alive."""
        self._followers.link_broken(node)

    def _on_torn(self, node: int, whose: Whose) -> None:
        """Handle that the connection broke over which a node was given its copy."""
        log.info("the connection broke over which node %d was given manager %d", node, whose[1])
        self._abandon(whose, self._copy(whose))
        self._look_again()

    def _doubt(self, node: int, whose: Whose, why: str) -> None:
        """Handle that a node does not do what it is sent.

        A holder is proposed for removal. A node that is being given a copy does not become a holder, unless that was
        proposed already; then nothing changes until the front end has decided.
        """
        copy = self._copy(whose)
        try:
            behind = self._held.holding(whose).behind(self._links.index)
        except LookupError:
            self._let_go(whose)
            return
        if behind == node and copy.doubted != node:
            log.error("node %d cannot keep its copy of manager %d (%s); the copy is given up", node, whose[1], why)
            copy.doubted = node
            self._propose(whose)
        elif behind is None and not (copy.learner is not None and copy.learner.complete):
            log.warning("node %d cannot be given a copy of manager %d (%s)", node, whose[1], why)
            copy.tried.add(node)
            self._abandon(whose, copy)
            self._look_again()

    def _propose(self, whose: Whose) -> None:
        """Ask the front end for the decision that this node considers due, if there is one."""
        copy, holding = self._copy(whose), self._held.holding(whose)
        if copy.doubted is not None:
            due = [holder for holder in holding.holders if holder != copy.doubted]
        elif copy.learner is not None and copy.learner.complete:
            due = [*holding.holders, copy.learner.node]
        else:
            return
        number, manager = whose
        self._followers.propose(Proposal(number, manager, holding.epoch, self._seen, holding.holders, due))

    # ---- new copies

    def look_after_copies(self) -> None:
        """Start the copies that are missing, for each shard of which this node is the last holder."""
        for whose, shard in list(self._held.held()):
            self._propose(whose)  # a proposal from before the loss was known is out of date
            self._recruit(whose, shard)

    def _recruit(self, whose: Whose, shard: Shard) -> None:
        copy, holding = self._copy(whose), self._held.holding(whose)
        wanted = len(shard.settings.holders)
        if holding.holders[-1] != self._links.index or len(holding.holders) >= wanted or copy.learner is not None:
            return
        free = [node for node in self._links.active() if node not in holding.holders and node not in copy.tried]
        if not free:
            if copy.tried:
                copy.tried.clear()
                self._look_again()
            return
        self._fills += 1
        learner = copy.learner = _Learner(free[0], Tag(holding.epoch, self._fills))
        settings = msgspec.structs.replace(shard.settings, folder="")
        teacher = (self._links.index, *learner.tag)
        request = CreateShard(learner.node, whose[0], settings, teacher)
        self._followers.prepare(learner.node, request, partial(self._fill, whose, learner))

    def _fill(self, whose: Whose, learner: _Learner, error: BaseException | None) -> None:
        copy = self._copy(whose)
        if copy.learner is not learner:
            return  # the front end decided meanwhile
        shard = self._held.copy_of(whose)
        if error is not None or shard is None:
            log.warning("manager %d has fewer copies than it should have: %s", whose[1], error)
            copy.tried.add(learner.node)
            copy.learner = None
            self._look_again()
            return
        learner.begun = True
        try:
            for names, entries in shard.export(_COPY_BATCH_BYTES):
                self._followers.send(learner.node, whose, _LOAD, learner.tag, [names], entries, _nothing, keep=False)
        except DestroyedError:
            return
        answers = self._answers.of(whose)
        state = [shard.newest, shard.is_frozen, shard.is_chosen, shard.since, answers, copy.position]
        done = partial(self._filled, whose, learner)
        self._followers.send(learner.node, whose, _STATE, learner.tag, state, [], done)

    def _filled(self, whose: Whose, learner: _Learner) -> None:
        copy = self._copies.get(whose)
        if copy is not None and copy.learner is learner and self._held.copy_of(whose) is not None:
            learner.complete = True
            self._propose(whose)

    def _abandon(self, whose: Whose, copy: _Copy) -> None:
        """Give up the copy that a node is being given. (No other node was told of it.)"""
        copy.learner = None
        for one in self._followers.take(whose):
            one.done()

    def _look_again(self) -> None:
        if not self._looks:
            self._looks = True
            self._followers.after(self._patience, self._on_time)
            self._patience = min(2 * self._patience, _MAX_RECOPY_S)

    def _on_time(self) -> None:
        self._looks = False
        self.look_after_copies()

    def _copy(self, whose: Whose) -> _Copy:
        return self._copies.setdefault(whose, _Copy())


def _answering(do: Callable[[], None], reply: Answer) -> None:
    """Call `do`, and send its exception, if it raises one, as the answer."""
    try:
        do()
    except Exception as error:
        reply(Result(), error_of(error))


def _nothing() -> None:
    """Do nothing: nobody waits for this answer."""
