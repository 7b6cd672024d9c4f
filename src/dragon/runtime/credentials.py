"""The certificates of a run, TLS contexts that trust no other, and callers that have not shown theirs yet.

Every connection of a run uses TLS 1.3. Between agents both sides show a certificate of the run's authority; the name in
it ("node-3") says which node it belongs to. An agent that joins has none yet: it verifies the front end by its
fingerprint, and proves that it has the run's secret.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dragon import _core
from dragon.runtime.log import Once

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


# A certificate is useful only during its run, because the authority's key exists only in the front end's memory. So it
# has no date of expiry (RFC 5280, 4.1.2.5), and clocks that are wrong or differ between the nodes do not matter.
_FROM, _UNTIL = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_PREFIX = "node-"


class Authority:
    """A certificate authority in the memory of one front end, which signs only for its run."""

    def __init__(self) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = f"dragon run {os.urandom(8).hex()}"
        extensions = [
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (_key_usage(key_cert_sign=True), True),
            (x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False),
        ]
        self.certificate = self._sign(self._name, self._key, extensions)

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """Return a certificate for `name` and its private key, both PEM."""
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        both_ends = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        extensions = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_key_usage(digital_signature=True), True),
            (x509.ExtendedKeyUsage(both_ends), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False),
        ]
        form = serialization.PrivateFormat.PKCS8
        private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        return self._sign(name, key, extensions), private

    def _sign(
        self, name: str, key: EllipticCurvePrivateKey, extensions: list[tuple[x509.ExtensionType, bool]]
    ) -> bytes:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.x509.oid import NameOID

        subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in (name, self._name))
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(_FROM).not_valid_after(_UNTIL)
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _key_usage(**used: bool) -> x509.KeyUsage:
    from cryptography import x509

    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    more = ("key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**{**dict.fromkeys(names + more, False), **used})


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate, PEM or DER, in hexadecimal."""
    if certificate.lstrip().startswith(b"-----"):
        certificate = ssl.PEM_cert_to_DER_cert(certificate.decode("ascii"))
    return hashlib.sha256(certificate).hexdigest()


def node_name(index: int) -> str:
    """Return the name in the certificate of a node."""
    return f"{_PREFIX}{index}"


def peer_index(connection: Any) -> int:
    """Return the index of the node at the other end of a verified connection (an ssl object with getpeercert)."""
    subject = dict(pair[0] for pair in (connection.getpeercert() or {}).get("subject", ()))
    name = subject.get("commonName", "")
    number = name.removeprefix(_PREFIX)
    if number == name or not (number.isascii() and number.isdigit()):
        raise ValueError(f"the peer's certificate is made out to {name!r}, which is no node of the run")
    return int(number)


def server_context(authority: bytes, certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Return the context of a listener between nodes, to which the caller must show a certificate of this run."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, certificate, key)
    context.num_tickets = 0  # every connection shows its certificates
    context.load_verify_locations(cadata=authority.decode("ascii"))
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(authority: bytes, certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Return the context of a caller between nodes, to which the listener must show a certificate of this run."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, certificate, key)
    context.load_verify_locations(cadata=authority.decode("ascii"))
    return context


def greeting_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Return the context of the front end, whose callers have no certificate yet and prove the secret instead."""
    return _context(ssl.PROTOCOL_TLS_SERVER, certificate, key)


def pinned_context() -> ssl.SSLContext:
    """Return the context of a caller that compares the listener's fingerprint itself, before it sends anything."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_mode = ssl.CERT_NONE
    return context


def _context(protocol: int, certificate: bytes = b"", key: bytes = b"") -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # A node is identified by the name in its certificate, not by its address.
    context.check_hostname = False
    if certificate:
        _load(context, certificate, key)
    return context


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # The ssl module reads keys from files only. This file is in memory and has no name that others could open.
    memory = _core.anonymous_memory("credentials")
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(certificate + key)
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)


# Each connection takes a file descriptor, so the number of those that are not authenticated yet is limited. More wait
# in the kernel's queue. A member of the run sends data at once and is authenticated within milliseconds. If the limit
# is reached, connections that have been silent or unauthenticated for longer are closed.
_MOST = 256  # unauthenticated connections at most
_GREETING_TIMEOUT_S = 5.0  # seconds within which a caller must send something
_SILENT_TIMEOUT_S = 0.25  # seconds within which a caller must send something when the limit is reached
_PROOF_TIMEOUT_S = 2.0  # seconds within which a caller must be authenticated when the limit is reached
_ACCEPT_BATCH = 64  # connections that are accepted before the loop serves others
_ACCEPT_RETRY_S = 0.1  # seconds after which accepting is retried


class _Caller:
    def __init__(self, connection: socket.socket, address: str, now: float) -> None:
        self.connection = connection
        self.address = address
        self.since = now
        self.greeting: asyncio.Future[None] | None = None  # set once the caller has sent something


class Callers:
    """Accepts connections, and calls `greet(connection, address)` for each that sends something. `greet` owns the
    connection and returns when the caller is authenticated or refused; it is cancelled if the limit is reached. `tell`
    logs who was refused, and why."""

    def __init__(
        self, listener: socket.socket, greet: Callable[[socket.socket, str], Awaitable[None]], tell: Once
    ) -> None:
        self._listener = listener
        self._greet = greet
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._callers: dict[_Caller, None] = {}  # the oldest first
        self._open = True
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Stop accepting connections; may be called again."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._listener)
            self._listener.close()
            for caller in list(self._callers):
                self._drop(caller)

    def _listen(self) -> None:
        if self._open:
            self._loop.add_reader(self._listener, self._on_callers)

    def _listen_later(self) -> None:
        self._loop.remove_reader(self._listener)
        self._loop.call_later(_ACCEPT_RETRY_S, self._listen)

    def _on_callers(self) -> None:
        for _ in range(_ACCEPT_BATCH):
            if len(self._callers) >= _MOST and not self._make_room():
                self._listen_later()
                return
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the caller closed the connection, or this process has no free descriptor
                self._tell("a connection could not be accepted: {}", error.strerror)
                if not self._make_room():
                    self._listen_later()
                return
            connection.setblocking(False)
            caller = _Caller(connection, address[0], self._loop.time())
            self._callers[caller] = None
            self._loop.add_reader(connection, self._on_spoken, caller)
            self._loop.call_later(_GREETING_TIMEOUT_S, self._on_silence, caller)

    def _make_room(self) -> bool:
        """Close connections that take too long. Returns whether any was closed."""
        now = self._loop.time()
        over = [
            c for c in self._callers if now - c.since > (_SILENT_TIMEOUT_S if c.greeting is None else _PROOF_TIMEOUT_S)
        ]
        for caller in over:
            self._tell("a caller from {} was refused: it did not authenticate, and others wait", caller.address)
            self._drop(caller)
        return bool(over)

    def _on_spoken(self, caller: _Caller) -> None:
        self._loop.remove_reader(caller.connection)
        caller.greeting = asyncio.ensure_future(self._greet(caller.connection, caller.address))
        caller.greeting.add_done_callback(lambda _: self._on_greeted(caller))

    def _on_silence(self, caller: _Caller) -> None:
        if caller in self._callers and caller.greeting is None:
            self._tell("a caller from {} was refused: it sent nothing for {:g} s", caller.address, _GREETING_TIMEOUT_S)
            self._drop(caller)

    def _on_greeted(self, caller: _Caller) -> None:
        self._callers.pop(caller, None)
        assert caller.greeting is not None
        if caller.greeting.cancelled():
            caller.connection.close()  # also where greet() had not begun
        else:
            caller.greeting.result()  # the loop reports an unexpected error of greet()

    def _drop(self, caller: _Caller) -> None:
        self._callers.pop(caller, None)
        if caller.greeting is None:
            self._loop.remove_reader(caller.connection)
            caller.connection.close()
        else:
            caller.greeting.cancel()
