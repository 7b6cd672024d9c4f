"""What processes of a node wait for, by object, as its agent tells whoever looks at the run."""

from __future__ import annotations

import msgspec

__all__ = ["NodeWaits", "Waited", "Waiter"]


class Waiter(msgspec.Struct, frozen=True):
    """A thread that waits. `puid` is 0 and the name empty where the run did not start the process."""

    node: int
    pid: int
    puid: int
    name: str
    seconds: float


class Waited(msgspec.Struct, frozen=True):
    """Something on a node that threads wait for. `text` goes after "waits"; `waiters` are the first of `count`, who
    have waited for the longest time."""

    node: int
    text: str
    count: int
    waiters: list[Waiter]


class NodeWaits(msgspec.Struct, frozen=True):
    """What is waited for on a node.

    `processes` counts the node's processes that wait, however shortly, and `seconds` is how long all of their threads
    that wait have done so at least.
    """

    node: int
    host: str
    processes: int
    seconds: float
    objects: list[Waited]
