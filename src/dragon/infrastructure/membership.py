"""Who belongs to a run of several nodes, and what a node needs in order to join it."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from dragon.infrastructure.node_desc import NodeDescriptor

__all__ = ["FANOUT", "Member", "Membership", "Token", "parent_of"]


class Token(msgspec.Struct, kw_only=True):
    """What the front end hands to each agent in private: never on a command line, never in a readable file.

    `addresses` are "host:port" of the front end, `fingerprint` the SHA-256 of its certificate (hexadecimal), `secret`
    the run's. `index` is the node's place if the launcher knows it; `claims` are what a rehearsed node is to look like.
    `listening` is whether the front end listened when the token was made: where nobody does any more, it has ended.
    """

    addresses: list[str]
    fingerprint: str
    secret: bytes
    index: int | None = None
    claims: dict[str, Any] = {}
    listening: bool = False

    def encode(self) -> str:
        """One line of text."""
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode()

    @classmethod
    def decode(cls, text: str) -> Token:
        """Raises ValueError for what encode() did not write."""
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(text.strip()), type=cls)


class Member(msgspec.Struct, kw_only=True):
    """A node of the run: what it has, and where its agent listens for the others."""

    node: NodeDescriptor
    addresses: list[str]
    port: int


FANOUT = 32
"""Nodes that ask the same one for the members of the run."""


def parent_of(index: int) -> int:
    """The node that a node asks."""
    return (index - 1) // FANOUT


class Membership(msgspec.Struct, kw_only=True):
    """A run as its front end describes it to one node, `index` of `members`.

    Only the first node is given the members; any other asks its `parent`, a node that comes before it, for them.
    `certificate` and `key` are this node's, signed by `authority` (all PEM); `settings` are the run's options.
    """

    index: int
    members: list[Member] = []
    parent: Member | None = None
    authority: bytes
    certificate: bytes
    key: bytes
    settings: dict[str, Any] = {}
