"""The nodes of a run of several nodes, and the data with which a node joins it."""

from __future__ import annotations

import base64
from typing import Any

from dragon.infrastructure.node_desc import NodeDescriptor
from dragon.infrastructure.structs import msgspec


class Token(msgspec.Struct, kw_only=True):
    """The secret data that the front end gives to each agent: never on a command line, never in a readable file.
    `addresses` are "host:port" of the front end, `fingerprint` the SHA-256 of its certificate (hexadecimal), `secret`
    that of the run. `index` is the node's index if the launcher knows it; `claims` describe a simulated node.
    `listening` says whether the front end listened when the token was made: then a refused connection means that it has
    ended."""

    addresses: list[str]
    fingerprint: str
    secret: bytes
    index: int | None = None
    claims: dict[str, Any] = {}
    listening: bool = False

    def encode(self) -> str:
        """Return the token as one line of text."""
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode()

    @classmethod
    def decode(cls, text: str) -> Token:
        """Return the token that encode() wrote. Raises ValueError for other text."""
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(text.strip()), type=cls)


class Member(msgspec.Struct, kw_only=True):
    """A node of the run: its description, and the addresses and port at which its agent listens for the others."""

    node: NodeDescriptor
    addresses: list[str]
    port: int


FANOUT = 32
"""The number of nodes that request the members of the run from the same node."""


def parent_of(index: int) -> int:
    """Return the node from which a node requests the members."""
    return (index - 1) // FANOUT


class Membership(msgspec.Struct, kw_only=True):
    """A run as its front end describes it to one node, `index` of `members`. Only the first node gets the members; any
    other requests them from its `parent`, an earlier node. `certificate` and `key` are this node's, signed by
    `authority` (all PEM); `settings` are the run's options."""

    index: int
    members: list[Member] = []
    parent: Member | None = None
    authority: bytes
    certificate: bytes
    key: bytes
    settings: dict[str, Any] = {}
