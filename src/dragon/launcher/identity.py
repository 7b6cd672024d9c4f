"""The identity with which a front end and its agents authenticate each other."""

from __future__ import annotations

import base64
import secrets

import msgspec

from dragon.infrastructure.membership import Token
from dragon.runtime.credentials import Authority, fingerprint

_SECRET_SIZE = 32


class Identity(msgspec.Struct, kw_only=True):
    """The front end's certificate and key (PEM), and the run's secret."""

    certificate: bytes
    key: bytes
    secret: bytes

    @classmethod
    def create(cls) -> Identity:
        """Return a new identity."""
        certificate, key = Authority.create().issue("front end")
        return cls(certificate=certificate, key=key, secret=secrets.token_bytes(_SECRET_SIZE))

    def token(self, addresses: list[str]) -> Token:
        """Return the token with which agents join at these addresses ("host:port")."""
        return Token(addresses=addresses, fingerprint=fingerprint(self.certificate), secret=self.secret)

    def encode(self) -> str:
        """Return the identity as one line of text."""
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode()

    @classmethod
    def decode(cls, text: str) -> Identity:
        """Return the identity that encode() wrote. Raises ValueError for other text."""
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(text.strip()), type=cls)
