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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dragon import _core
from dragon.agent.objects.peers import Peers
from dragon.agent.shards.holding import Holding, Whose
from dragon.agent.shards.snapshots import Snapshots
from dragon.infrastructure.ddict_errors import DDictUnableToCreateError
from dragon.infrastructure.errors import DestroyedError
from dragon.infrastructure.messages import Name
from dragon.infrastructure.structs import msgspec
from dragon.runtime.folder import Owner, is_alive, make_data_folder
from dragon.runtime.handle import Lock, Words
from dragon.runtime.protocol.shards import (
    CreateShard,
    DescribeDictionary,
    DestroyDictionary,
    IsAlive,
    KeepDictionary,
    KeptShards,
    ListDictionaries,
    OwnCopy,
    PauseWriters,
    ReviveShard,
    Settings,
    ShardChannel,
    ShardHolders,
)
from dragon.runtime.rpc import serves, serves_each
from dragon.shards.operations import Tag
from dragon.shards.shard import Shard, in_core, make_words, mark_gone, words_after

if TYPE_CHECKING:
    from dragon.agent.shards.service import ShardService
    from dragon.runtime.run import Run

__all__ = ["Shards"]

_Result = TypeVar("_Result")

_CHECK_INTERVAL_S = 1.0


class _Dictionary:
    """What this node knows of a dictionary. `nodes` and `life` are known only on the node where it was created."""

    def __init__(self) -> None:
        self.descriptor = ""
        self.nodes: list[int] = []
        self.life: Name | None = None
        self.shards: dict[int, tuple[Settings, Words, Lock]] = {}
        self.open: dict[int, Shard] = {}
        self.holdings: dict[int, Holding] = {}
        self.teachers: dict[int, tuple[int, Tag]] = {}  # the nodes that fill copies that are not valid yet


class Shards:
    """All shards of one node."""

    def __init__(self, run: Run, peers: Peers | None) -> None:
        self._run = run
        self._peers = peers
        self._loop = asyncio.get_running_loop()
        self._dictionaries: dict[str, _Dictionary] = {}
        self._kept: dict[str, _Dictionary] = {}  # by name: destroyed dictionaries that may be restarted
        self._lock = threading.Lock()
        self.serving: ShardService | None = None
        self.snapshots = Snapshots(self._shard)

    # ---- lifetime

    @serves_each(IsAlive)
    def _is_alive(self, pid: int, start_time: int) -> bool:
        return is_alive(Owner(pid, start_time))

    @serves_each(OwnCopy)
    def _own_copy(self, number: str, manager: int) -> Settings | None:
        shard = self.copy_of((number, manager))
        return shard.settings if shard is not None else None

    @serves_each(ShardHolders)
    def _holders(self, number: str, manager: int) -> list[int]:
        return self.holding((number, manager)).holders

    @serves_each(PauseWriters)
    def _pause(self, number: str, manager: int, on: bool) -> None:
        self._shard(number, manager).pause(on)

    @serves_each(CreateShard)
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
        known.holdings.pop(manager, None)
        made = self._add(known, settings, words, lock)
        if teacher is not None:
            known.teachers[manager] = teacher[0], Tag(*teacher[1:])
        elif made.holders:
            self._hold(known, manager, made.holders)
        return made

    def _add(self, known: _Dictionary, settings: Settings, words: Words, lock: Lock) -> Settings:
        """Add a shard. Without replicas, for which the primary numbers what is done, other nodes use it by the wire."""
        made = msgspec.structs.replace(settings, words=words._name(), lock=lock._name())
        known.shards[made.manager] = made, words, lock
        if self._peers is not None and not made.holders:
            self._peers.links.wire.serve_shard(made.words, made.lock, *in_core(made))
        return made

    def _forget(self, settings: Settings) -> None:
        if self._peers is not None:
            self._peers.links.wire.forget_shard(settings.words)

    def _hold(self, known: _Dictionary, manager: int, holders: list[int]) -> None:
        """Keep a copy of a new shard together with the nodes `holders`, without those that are lost already."""
        assert self._peers is not None
        lost = [self._peers.lost_at[node] for node in holders if node in self._peers.lost]
        left = [node for node in holders if node not in self._peers.lost]
        known.holdings[manager] = Holding(max(lost, default=0), left)
        self.service()
        if lost:
            assert self.serving is not None
            self.serving.afterwards(self.serving.replication.look_after_copies)

    @serves(DescribeDictionary)
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
            if node != self._run.node and self._peers is not None:
                self._peers.forward(node, DestroyDictionary(node, number))
        self.destroy(number)

    @serves_each(DestroyDictionary)
    def destroy(self, number: str) -> asyncio.Future[None] | None:
        """Remove a dictionary's shards from this node. The future is done when its snapshots are written."""
        with self._lock:
            known = self._dictionaries.pop(number, None)
        if known is None:
            return None
        self._forget_copies(number)
        may_be_due = any(settings.persist_freq for settings, *_ in known.shards.values())
        for manager in list(known.shards):
            self._remove(known, manager)
        return self.snapshots.finish() if may_be_due else None

    @serves_each(KeepDictionary)
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
            settings, words, lock = known.shards[shard.settings.manager]
            folder = Path(tempfile.mkdtemp(dir=Path(settings.folder).parent))
            shard.move_to(folder)
            shard.close()  # before it can be restarted: no process may open the same file twice
            moved = msgspec.structs.replace(settings, folder=str(folder))
            known.shards[settings.manager] = moved, words, lock
            known.open.pop(settings.manager, None)
            shutil.rmtree(Path(settings.folder), ignore_errors=True)
        self._kept[name] = known

    @serves_each(KeptShards)
    def kept(self, name: str) -> tuple[str, list[int]] | None:
        """Return the descriptor kept under a name, and the managers whose shards this node has. None: nothing kept."""
        known = self._kept.get(name)
        return (known.descriptor, sorted(known.shards)) if known else None

    @serves_each(ReviveShard)
    def revive(self, number: str, name: str, manager: int, holders: list[int]) -> Settings:
        """Make a shard of a kept one. Return its settings."""
        settings, before, old_lock = self._kept[name].shards.pop(manager)
        if not self._kept[name].shards:
            del self._kept[name]
        words, lock = words_after(before), Lock()
        before._close()
        old_lock._close()
        known = self._dictionaries.setdefault(number, _Dictionary())
        made = self._add(known, msgspec.structs.replace(settings, holders=holders), words, lock)
        if holders:
            self._hold(known, manager, holders)
        return made

    def _remove(self, known: _Dictionary, manager: int) -> None:
        if manager not in known.shards:
            return
        settings, words, lock = known.shards.pop(manager)
        mark_gone(words)
        self._forget(settings)
        words._close()
        lock._close()
        shutil.rmtree(Path(settings.folder), ignore_errors=True)
        with self._lock:
            shard = known.open.pop(manager, None)
        if shard is not None:
            self._after_requests(shard.close)

    def _after_requests(self, do: Callable[..., _Result], *arguments: Any) -> Future[_Result]:
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

    @serves_each(ListDictionaries)
    def _descriptors(self) -> list[str]:
        """Return the descriptors of the dictionaries that were created on this node."""
        return [known.descriptor for known in self._dictionaries.values() if known.descriptor]

    def usages(self) -> Iterator[tuple[str, int, int, int, int]]:
        """Yield, for each shard on this node: dictionary name, manager, used bytes, total bytes, records."""
        for number, known in self._dictionaries.items():
            for manager, (settings, *_) in known.shards.items():
                usage = self._shard(number, manager).usage()
                yield settings.name, manager, usage["used"], usage["total"], usage["records"]

    # ---- other nodes' processes

    @serves_each(ShardChannel)
    def service(self) -> Name:
        """Return the channel through which other nodes' processes reach the shards of this node."""
        if self.serving is None:
            assert self._peers is not None
            from dragon.agent.shards.service import ShardService  # a node without dictionaries starts faster without it

            self.serving = ShardService(self._peers, self._shard, self)
        return self.serving.name

    def node_lost(self, node: int, epoch: int) -> None:
        """Handle the loss of a node, which the front end decided as number `epoch`, after all earlier requests."""
        if self.serving is not None:
            self.serving.afterwards(partial(self.serving.replication.node_lost, node, epoch))

    def decided(self, number: str, manager: int, holders: list[int], epoch: int) -> None:
        """Take over a decision of the front end which nodes keep a shard."""
        if self.serving is not None:
            decision = (number, manager), Holding(epoch, holders)
            self.serving.afterwards(partial(self.serving.replication.decided, *decision))

    def link_broken(self, node: int) -> None:
        """Handle that the connection to another node broke."""
        if self.serving is not None:
            self.serving.afterwards(partial(self.serving.replication.link_broken, node))

    def _forget_copies(self, number: str) -> None:
        if self.serving is not None:
            self.serving.afterwards(partial(self.serving.replication.forget, number))

    # ---- copies

    def holding(self, whose: Whose) -> Holding:
        """Return the nodes that keep a replicated shard. Raises LookupError if this node is not one of them."""
        number, manager = whose
        known = self._dictionaries.get(number)
        if known is None or manager not in known.holdings or self._run.node not in known.holdings[manager].holders:
            raise LookupError(f"node {self._run.node} has no copy of manager {manager}")
        return known.holdings[manager]

    def hold_since(self, whose: Whose, holding: Holding) -> None:
        """Note that the nodes that keep a shard have changed."""
        number, manager = whose
        known = self._dictionaries.get(number)
        if known is None or manager not in known.shards:
            return
        known.holdings[manager] = holding
        known.teachers.pop(manager, None)
        if self._run.node not in holding.holders:
            mark_gone(known.shards[manager][1])

    def teacher(self, whose: Whose) -> tuple[int, Tag] | None:
        """Return the node that fills this node's copy, and its tag, while the copy is not valid yet."""
        known = self._dictionaries.get(whose[0])
        return known.teachers.get(whose[1]) if known is not None else None

    def copy_of(self, whose: Whose) -> Shard | None:
        """Return this node's copy of a shard, None if it has no valid one."""
        try:
            self.holding(whose)
            return self._shard(*whose)
        except (LookupError, DestroyedError):
            return None

    def held(self) -> Iterator[tuple[Whose, Shard]]:
        """Yield every valid copy on this node."""
        for number, known in list(self._dictionaries.items()):
            for manager, holding in list(known.holdings.items()):
                if self._run.node in holding.holders:
                    yield (number, manager), self._shard(number, manager)

    def _shard(self, number: str, manager: int) -> Shard:
        with self._lock:
            known = self._dictionaries.get(number)
            if known is None or manager not in known.shards:
                raise DestroyedError("the dictionary was destroyed")
            if manager not in known.open:
                shard = known.open[manager] = Shard(*known.shards[manager])
                shard.retire = lambda checkpoints: self.snapshots.retire(shard, number, checkpoints)
            return known.open[manager]
