"""File descriptors of channels of other nodes, for select() and similar functions.

A process that needs one is given the descriptor of a channel of its own node, the proxy, which has a message in it
while the channel can be read. Its owner's agent reports every change, before anything else that it sends.
"""

from __future__ import annotations

import asyncio

from dragon.agent.wire.links import Links
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel
from dragon.runtime.protocol.agents import WatchReadable
from dragon.runtime.remote import node_of

__all__ = ["ProxyChannels"]

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
