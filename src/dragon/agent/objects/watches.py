"""Reports to other nodes whether channels of this node can be read, for the descriptors that processes there wait for.

A change is reported to a node before anything that is sent to it later. So if a process has emptied a channel before it
released a lock, and one of another node acquires the lock, that one sees the channel empty.

On the other side, a process that needs a file descriptor for a channel of another node is given that of a channel of
its own node, the proxy, which has a message in it while the other channel can be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dragon import _core
from dragon.agent.objects.bell import Bell
from dragon.agent.wire.links import Links
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel
from dragon.runtime.protocol.agents import IsReadable, WatchReadable
from dragon.runtime.remote import node_of

__all__ = ["ProxyChannels", "Watches"]


_MEMORY_RETRY_S = 0.02  # seconds between two attempts if the node has no memory for the message
_REACH_RETRY_S = 1.0  # seconds until an agent that could not be reached is asked again


class _Proxy:
    """`users` has the number of handles of each process that use it. `known` is done once the first report has come."""

    def __init__(self) -> None:
        self.channel = Channel()
        self.users: dict[int, int] = {}
        self._loop = asyncio.get_running_loop()
        self.known: asyncio.Future[Name] = self._loop.create_future()
        self._reported = False  # whether the channel can be read
        self._is_readable = False

    def set(self, is_readable: bool) -> None:
        """Note whether the channel can be read."""
        self._reported = is_readable
        self._show()

    def _show(self) -> None:
        if self._reported and not self._is_readable:
            try:
                self.channel.put(None)
            except MemoryError:
                self._loop.call_later(_MEMORY_RETRY_S, self._show)
                return
        elif self._is_readable and not self._reported:
            self.channel.get(False)
        self._is_readable = self._reported
        if not self.known.done():
            self.known.set_result(self.channel._name())


class ProxyChannels:
    """The proxies of one node, by the channels of other nodes."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._proxies: dict[Name, _Proxy] = {}
        self._leads_to: dict[Name, Name] = {}  # by the names of proxies
        self._retries: dict[int, asyncio.TimerHandle] = {}  # by nodes that could not be reached
        self._loop = asyncio.get_running_loop()

    def open(self, pid: int, name: Name) -> asyncio.Future[Name]:
        """Return a future of the proxy of a channel, for a handle of that process. It fails with NodeLostError."""
        proxy = self._proxies.get(name)
        if proxy is None:
            proxy = self._proxies[name] = _Proxy()
            self._leads_to[proxy.channel._name()] = name
            self._links.notify(node_of(name), WatchReadable(name, True))
        proxy.users[pid] = proxy.users.get(pid, 0) + 1
        return asyncio.shield(proxy.known)

    def reported(self, name: Name, is_readable: bool) -> None:
        """Note whether a channel can be read, as its node reports."""
        proxy = self._proxies.get(name)
        if proxy is not None:
            proxy.set(is_readable)

    def dropped(self, pid: int, proxy_name: Name) -> None:
        """Handle that a process has dropped a handle that used that proxy."""
        name = self._leads_to.get(proxy_name)
        if name is None:
            return
        users = self._proxies[name].users
        if users.get(pid, 0) > 1:
            users[pid] -= 1
        else:
            self._remove_user(pid, name)

    def left(self, pid: int) -> None:
        """Handle the end of a process."""
        for name in [name for name, proxy in self._proxies.items() if pid in proxy.users]:
            self._remove_user(pid, name)

    def _remove_user(self, pid: int, name: Name) -> None:
        proxy = self._proxies[name]
        proxy.users.pop(pid, None)
        if not proxy.users:
            del self._proxies[name], self._leads_to[proxy.channel._name()]
            if node_of(name) not in self._links.lost:
                self._links.notify(node_of(name), WatchReadable(name, False))

    def broken(self, node: int, reason: str) -> None:
        """Handle that the connection to a node broke, that the node could not be reached, or that it is lost.

        If only the connection broke, a new one is made. Otherwise reads of its channels fail at once, so the proxies
        become readable; a node that is not lost is asked again after a delay.
        """
        is_lost = node in self._links.lost
        if not is_lost and node not in self._links.unreachable:
            self._watch_again(node)
            return
        for name in self._of(node):
            proxy = self._proxies[name]
            if proxy.known.done():
                proxy.set(True)
            else:
                del self._proxies[name], self._leads_to[proxy.channel._name()]
                proxy.known.set_exception(NodeLostError(self._links.what_happened(node, reason)))
        if not is_lost and node not in self._retries:
            self._retries[node] = self._loop.call_later(_REACH_RETRY_S, self._reach_again, node)

    def _reach_again(self, node: int) -> None:
        del self._retries[node]
        self._watch_again(node)

    def _watch_again(self, node: int) -> None:
        for name in self._of(node):
            self._links.notify(node, WatchReadable(name, True))

    def _of(self, node: int) -> list[Name]:
        return [name for name in self._proxies if node_of(name) == node]


_LOCK_RETRY_S = 0.02  # seconds between two attempts if a stopped process holds a lock
_RECHECK_S = 1.0  # seconds; the longest delay of a change that nothing was sent after


class Watches:
    """The channels of this node that other nodes watch.

    `others` handles the other waits for a channel that has changed, given its offset.
    """

    def __init__(self, links: Links, bell: Bell, others: Callable[[int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._links = links
        self._bell = bell
        self._others = others
        self._channels: dict[Name, Channel] = {}
        self._watchers: dict[Name, set[int]] = {}  # the nodes that watch a channel
        self._readable: dict[int, set[Name]] = {}  # by watching node: the channels that were reported as readable
        self._reporting: set[int] = set()  # the nodes to which _before_send() is reporting
        self._recheck: asyncio.TimerHandle | None = None

    def begin(self, node: int, name: Name) -> None:
        """Report the state of a channel to a node, and its changes from now on."""
        self._watchers.setdefault(name, set()).add(node)
        self._readable.setdefault(node, set()).discard(name)
        self._links.before_send[node] = self._before_send
        if self._recheck is None:
            self._recheck = self._loop.call_later(_RECHECK_S, self._look_again)
        self._open(node, name)

    def _open(self, node: int, name: Name) -> None:
        if node not in self._watchers.get(name, ()):
            return  # it has ended its watch
        try:
            if name not in self._channels:
                channel = Channel._attached((name[0], name[1], name[2] & ~0xFF))
                channel._watch(True)
                self._channels[name] = channel
                self._bell.listen(name[0], lambda: self._changed(name[0]))
        except _core.LockedError:
            self._loop.call_later(_LOCK_RETRY_S, self._open, node, name)
        except _core.DestroyedError:
            self._report(node, name, True)
        else:
            self._report(node, name, self._is_readable(name, False))

    def end(self, node: int, name: Name) -> None:
        """Report no more changes of a channel to a node."""
        watching = self._watchers.get(name, set())
        watching.discard(node)
        self._readable.get(node, set()).discard(name)
        if not watching:
            self._close(name)
        if not any(node in watching for watching in self._watchers.values()):
            self._links.before_send.pop(node, None)
            self._readable.pop(node, None)

    def node_left(self, node: int) -> None:
        """Report nothing more to a node."""
        for name in [name for name, watching in self._watchers.items() if node in watching]:
            self.end(node, name)

    def _close(self, name: Name) -> None:
        self._watchers.pop(name, None)
        channel = self._channels.pop(name, None)
        if channel is None:
            return
        if all(other[0] != name[0] for other in self._channels):  # a later channel may have the place of this one
            self._bell.ignore(name[0])
        try:
            channel._watch(False)
        except _core.DestroyedError:
            pass  # it needs no watching any more
        channel._close()

    def _changed(self, offset: int) -> None:
        self._look_at(offset)
        self._loop.call_soon(self._others, offset)  # what they send comes after reports on other channels

    def _look_at(self, offset: int) -> None:
        for name in [name for name in self._channels if name[0] == offset]:
            self._look(name)

    def look_at_all(self) -> None:
        """Report everything that has changed."""
        for name in list(self._channels):
            self._look(name)

    def _look_again(self) -> None:
        self._recheck = self._loop.call_later(_RECHECK_S, self._look_again) if self._watchers else None
        self.look_at_all()

    def _look(self, name: Name) -> None:
        for node in list(self._watchers.get(name, ())):
            self._look_for(node, name)

    def _look_for(self, node: int, name: Name) -> None:
        reported = name in self._readable[node]
        if name in self._channels and self._is_readable(name, reported) != reported:
            self._report(node, name, not reported)

    def _report(self, node: int, name: Name, is_readable: bool) -> None:
        # It is noted before it is sent, as to send it calls _before_send().
        if is_readable:
            self._readable[node].add(name)
        else:
            self._readable[node].discard(name)
        self._links.notify(node, IsReadable(name, is_readable))

    def _before_send(self, node: int) -> None:
        """Report what has changed to a node to which something else is about to be sent.

        Notifications are only read here: their handlers may be sending just now.
        """
        if node in self._reporting:
            return
        self._reporting.add(node)
        try:
            changed = self._bell.collect()
            if 0 in changed:
                self.look_at_all()
            for offset in changed & {name[0] for name in self._channels} if changed else ():
                self._look_at(offset)
            for name in list(self._readable.get(node, ())):
                self._look_for(node, name)
        finally:
            self._reporting.discard(node)

    def _is_readable(self, name: Name, otherwise: bool) -> bool:
        """Return whether a channel can be read; `otherwise` if a stopped process holds its lock."""
        try:
            return bool(self._channels[name]._wait_readable(0))
        except _core.DestroyedError:
            return True
        except _core.LockedError:
            return otherwise
