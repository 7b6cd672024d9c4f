"""The shards of distributed dictionaries on this node.

They are created and described to other processes here, and removed with the dictionary's last user.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dragon import _core
from dragon.agent.shards.answers import Holding, Whose
from dragon.agent.shards.snapshots import Snapshots
from dragon.infrastructure.ddict_errors import DDictUnableToCreateError
from dragon.infrastructure.errors import DestroyedError
from dragon.infrastructure.start_request import Name
from dragon.infrastructure.structs import msgspec
from dragon.runtime.folder import Owner, is_alive, make_data_folder
from dragon.runtime.handle import Lock, Words
from dragon.runtime.protocol import shards as requests
from dragon.runtime.protocol.agents import Decided
from dragon.runtime.protocol.shards import Settings
from dragon.runtime.rpc import serves, serves_each
from dragon.shards.operations import Tag
from dragon.shards.shard import Shard, in_core, make_words, mark_gone, words_after

if TYPE_CHECKING:
    from dragon.agent.shards.service import ShardService
    from dragon.agent.wire.links import Links
    from dragon.runtime.run import Run

_Result = TypeVar("_Result")

_CHECK_INTERVAL_S = 1.0


@dataclass
class _Own:
    """A shard on this node. With replicas, `holding` has their holders, or `teacher` the node that fills this copy."""

    settings: Settings
    words: Words
    lock: Lock
    open: Shard | None = None
    holding: Holding | None = None
    teacher: tuple[int, Tag] | None = None


@dataclass
class _Dictionary:
    """What this node knows of a dictionary. `nodes` and `life` are known only on the node where it was created."""

    descriptor: str = ""
    nodes: list[int] = field(default_factory=list)
    life: Name | None = None
    shards: dict[int, _Own] = field(default_factory=dict)  # by manager


class Shards:
    """All shards of one node."""

    def __init__(self, run: Run, links: Links | None) -> None:
        self._run = run
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._dictionaries: dict[str, _Dictionary] = {}
        self._kept: dict[str, _Dictionary] = {}  # by name: destroyed dictionaries that may be restarted
        self._lock = threading.Lock()
        self.serving: ShardService | None = None
        self.snapshots = Snapshots(self._shard)

    # ---- lifetime

    @serves_each(requests.IsAlive)
    def _is_alive(self, pid: int, start_time: int) -> bool:
        return is_alive(Owner(pid, start_time))

    @serves_each(requests.OwnCopy)
    def _own_copy(self, number: str, manager: int) -> Settings | None:
        shard = self.copy_of((number, manager))
        return shard.settings if shard is not None else None

    @serves_each(requests.ShardHolders)
    def _holders(self, number: str, manager: int) -> list[int]:
        return self.holding((number, manager)).holders

    @serves_each(requests.PauseWriters)
    def _pause(self, number: str, manager: int, on: bool) -> None:
        self._shard(number, manager).pause(on)

    @serves_each(requests.CreateShard)
    def create(self, number: str, settings: Settings, teacher: tuple[int, int, int] | None = None) -> Settings:
        """Create a shard, and return its settings. If a `teacher` fills it, it is valid by a decision only."""
        manager = settings.manager
        try:
            folder = make_data_folder(self._run.folder, settings.capacity)
        except (OSError, MemoryError) as error:
            raise DDictUnableToCreateError(f"manager {manager} on node {self._run.node}: {error}") from error
        words, lock = make_words(), Lock()
        settings = msgspec.structs.replace(settings, folder=str(folder), node=self._run.node)
        known = self._dictionaries.setdefault(number, _Dictionary())
        self._remove(known, manager)  # a copy that was no longer valid
        own = self._add(known, settings, words, lock)
        if teacher is not None:
            own.teacher = teacher[0], Tag(*teacher[1:])
        elif settings.holders:
            self._hold(own, settings.holders)
        return own.settings

    def _add(self, known: _Dictionary, settings: Settings, words: Words, lock: Lock) -> _Own:
        """Add a shard. Without replicas, for which the primary numbers what is done, other nodes use it by the wire."""
        made = msgspec.structs.replace(settings, words=words._name(), lock=lock._name())
        own = known.shards[made.manager] = _Own(made, words, lock)
        if self._links is not None and not made.holders:
            self._links.wire.serve_shard(made.words, made.lock, *in_core(made))
        return own

    def _forget(self, settings: Settings) -> None:
        if self._links is not None:
            self._links.wire.forget_shard(settings.words)

    def _hold(self, own: _Own, holders: list[int]) -> None:
        """Keep a copy of a new shard together with the nodes `holders`, without those that are lost already."""
        assert self._links is not None
        lost = [self._links.lost_at[node] for node in holders if node in self._links.lost]
        left = [node for node in holders if node not in self._links.lost]
        own.holding = Holding(max(lost, default=0), left)
        self.service()
        if lost:
            assert self.serving is not None
            self.serving.afterwards(self.serving.replication.look_after_copies)

    @serves(requests.DescribeDictionary)
    def describe(self, number: str, descriptor: str, nodes: list[int], life: Name) -> None:
        """Keep what others need to attach to a dictionary that was created on this node, while `life` exists."""
        known = self._dictionaries.setdefault(number, _Dictionary())
        known.descriptor, known.nodes, known.life = descriptor, nodes, life
        self._loop.call_later(_CHECK_INTERVAL_S, self._look, number)

    def _look(self, number: str) -> None:
        known = self._dictionaries.get(number)
        if known is None or known.life is None:
            return
        if _core.exists(*known.life[:2]):
            self._loop.call_later(_CHECK_INTERVAL_S, self._look, number)
            return
        for node in known.nodes:
            if node != self._run.node and self._links is not None:
                self._links.forward(node, requests.DestroyDictionary(node, number))
        self.destroy(number)

    @serves_each(requests.DestroyDictionary)
    def destroy(self, number: str) -> asyncio.Future[None] | None:
        """Remove a dictionary's shards from this node. The future is done when its snapshots are written."""
        with self._lock:
            known = self._dictionaries.pop(number, None)
        if known is None:
            return None
        self._forget_copies(number)
        may_be_due = any(own.settings.persist_freq for own in known.shards.values())
        for manager in list(known.shards):
            self._remove(known, manager)
        return self.snapshots.finish() if may_be_due else None

    @serves_each(requests.KeepDictionary)
    def keep(self, number: str, name: str, descriptor: str) -> asyncio.Future[None] | None:
        """Destroy a dictionary, but keep its shards here for revive(), in place of an earlier one with its name."""
        before = self._kept.pop(name, _Dictionary())
        for manager in list(before.shards):
            self._remove(before, manager)
        if number not in self._dictionaries:
            return None
        shards = [self._shard(number, manager) for manager in self._dictionaries[number].shards]
        with self._lock:
            known = self._dictionaries.pop(number)
        self._forget_copies(number)
        known.descriptor, known.life = descriptor, None
        for shard in shards:
            mark_gone(shard.words)
            self._forget(shard.settings)
        return asyncio.wrap_future(self._after_requests(self._move, name, known, shards))

    def _move(self, name: str, known: _Dictionary, shards: list[Shard]) -> None:
        for shard in shards:
            own, before = known.shards[shard.settings.manager], Path(shard.settings.folder)
            folder = Path(tempfile.mkdtemp(dir=before.parent))
            shard.move_to(folder)
            shard.close()  # before it can be restarted: no process may open the same file twice
            own.settings, own.open = msgspec.structs.replace(own.settings, folder=str(folder)), None
            shutil.rmtree(before, ignore_errors=True)
        self._kept[name] = known

    @serves_each(requests.KeptShards)
    def kept(self, name: str) -> tuple[str, list[int]] | None:
        """Return the descriptor kept under a name, and the managers whose shards this node has. None: nothing kept."""
        known = self._kept.get(name)
        return (known.descriptor, sorted(known.shards)) if known else None

    @serves_each(requests.ReviveShard)
    def revive(self, number: str, name: str, manager: int, holders: list[int]) -> Settings:
        """Make a shard of a kept one. Return its settings."""
        before = self._kept[name].shards.pop(manager)
        if not self._kept[name].shards:
            del self._kept[name]
        words, lock = words_after(before.words), Lock()
        before.words._close()
        before.lock._close()
        known = self._dictionaries.setdefault(number, _Dictionary())
        own = self._add(known, msgspec.structs.replace(before.settings, holders=holders), words, lock)
        if holders:
            self._hold(own, holders)
        return own.settings

    def _remove(self, known: _Dictionary, manager: int) -> None:
        own = known.shards.pop(manager, None)
        if own is None:
            return
        mark_gone(own.words)
        self._forget(own.settings)
        own.words._close()
        own.lock._close()
        shutil.rmtree(Path(own.settings.folder), ignore_errors=True)
        with self._lock:
            shard = own.open
        if shard is not None:
            self._after_requests(shard.close)

    def _after_requests(self, do: Callable[..., _Result], *arguments: object) -> Future[_Result]:
        """Run `do` in turn, once the service is done with earlier requests: nothing uses a forgotten shard then."""
        if self.serving is None:
            return self.snapshots.in_turn(do, *arguments)
        done: Future[_Result] = Future()

        def run() -> None:
            try:
                done.set_result(do(*arguments))
            except BaseException as error:
                done.set_exception(error)

        def begin() -> None:
            try:
                self.snapshots.in_turn(run)
            except RuntimeError as error:  # no thread can be started
                done.set_exception(error)

        self.serving.afterwards(begin)
        return done

    @serves_each(requests.ListDictionaries)
    def _descriptors(self) -> list[str]:
        """Return the descriptors of the dictionaries that were created on this node."""
        return [known.descriptor for known in self._dictionaries.values() if known.descriptor]

    def usages(self) -> Iterator[tuple[str, int, int, int, int]]:
        """Yield, for each shard on this node: dictionary name, manager, used bytes, total bytes, records."""
        for number, known in self._dictionaries.items():
            for manager, own in known.shards.items():
                usage = self._shard(number, manager).usage()
                yield own.settings.name, manager, usage["used"], usage["total"], usage["records"]

    # ---- other nodes' processes

    @serves_each(requests.ShardChannel)
    def service(self) -> Name:
        """Return the channel through which other nodes' processes reach the shards of this node."""
        if self.serving is None:
            assert self._links is not None
            from dragon.agent.shards.service import ShardService  # a node without dictionaries starts faster without it

            self.serving = ShardService(self._links, self._shard, self)
        return self.serving.name

    def node_lost(self, node: int, epoch: int) -> None:
        """Handle the loss of a node, which the front end decided as number `epoch`, after all earlier requests."""
        if self.serving is not None:
            self.serving.afterwards(partial(self.serving.replication.node_lost, node, epoch))

    @serves(Decided)
    def decided(self, number: str, manager: int, holders: list[int], epoch: int) -> None:
        if self.serving is not None:
            decision = (number, manager), Holding(epoch, holders)
            self.serving.afterwards(partial(self.serving.replication.decided, *decision))

    def link_broken(self, node: int) -> None:
        if self.serving is not None:
            self.serving.afterwards(partial(self.serving.replication.link_broken, node))

    def _forget_copies(self, number: str) -> None:
        if self.serving is not None:
            self.serving.afterwards(partial(self.serving.replication.forget, number))

    # ---- copies

    def _own(self, number: str, manager: int) -> _Own | None:
        known = self._dictionaries.get(number)
        return known.shards.get(manager) if known is not None else None

    def holding(self, whose: Whose) -> Holding:
        own = self._own(*whose)
        if own is None or own.holding is None or self._run.node not in own.holding.holders:
            raise LookupError(f"node {self._run.node} has no copy of manager {whose[1]}")
        return own.holding

    def hold_since(self, whose: Whose, holding: Holding) -> None:
        own = self._own(*whose)
        if own is not None:
            own.holding, own.teacher = holding, None
            if self._run.node not in holding.holders:
                mark_gone(own.words)

    def teacher(self, whose: Whose) -> tuple[int, Tag] | None:
        own = self._own(*whose)
        return own.teacher if own is not None else None

    def copy_of(self, whose: Whose) -> Shard | None:
        try:
            self.holding(whose)
            return self._shard(*whose)
        except (LookupError, DestroyedError):
            return None

    def held(self) -> Iterator[tuple[Whose, Shard]]:
        for number, known in list(self._dictionaries.items()):
            for manager, own in list(known.shards.items()):
                if own.holding is not None and self._run.node in own.holding.holders:
                    yield (number, manager), self._shard(number, manager)

    def _shard(self, number: str, manager: int) -> Shard:
        with self._lock:
            own = self._own(number, manager)
            if own is None:
                raise DestroyedError("the dictionary was destroyed")
            if own.open is None:
                shard = own.open = Shard(own.settings, own.words, own.lock)
                shard.retire = lambda checkpoints: self.snapshots.retire(shard, number, checkpoints)
            return own.open
