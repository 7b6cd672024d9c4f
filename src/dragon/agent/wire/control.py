"""The connection between the front end and an agent, and how an agent joins its run.

A frame is a length (4 bytes, little-endian) and a msgpack pair of kind and values. Joining goes so:

1. The agent calls one of the token's addresses by TLS and compares the certificate's fingerprint with the token's.
   Until they agree it sends nothing.
2. The front end sends `challenge` with a nonce.
3. The agent answers `join`: a nonce of its own, an HMAC of both under the run's secret, and what the node has. A
   greeting that somebody recorded holds an old nonce and proves nothing.
4. The front end sends `membership` once all nodes are there, or `refused` with the reason.

The kernel asks every second whether the other side is there (`watch_silence`), so a network that went silent is
noticed within five seconds. It asks the other machine and not the other process, so neither a busy loop nor Ctrl-Z
looks like a dead node.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import msgspec

from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.membership import Member, Membership, Token
from dragon.infrastructure.node_desc import NodeDescriptor
from dragon.runtime.credentials import fingerprint, pinned_context

__all__ = ["LARGEST_FRAME", "NONCE_SIZE", "Control", "JoinError", "join", "proof", "watch_silence"]

LARGEST_FRAME = 64 * 2**20
NONCE_SIZE = 32
_SILENCE = 4  # seconds
_PER_ADDRESS = 3.0
_BETWEEN_ROUNDS = 0.2

Message = tuple[str, dict[str, Any]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class JoinError(DragonError):
    """A node could not join its run; the message says at which step, and what to check."""


class Control(asyncio.Protocol):
    """One end of a control connection. Everything happens on the event loop that it was made on.

    `on_message` gets each message's kind and values; what arrived before it was set is kept for it. `on_lost` gets the
    reason when the connection ends and this side did not close it, however late it is set.
    """

    def __init__(self, peer: str, largest: int = LARGEST_FRAME) -> None:
        self.peer = peer
        self.largest = largest
        self.transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: deque[Message] = deque()
        self._arrived: asyncio.Event = asyncio.Event()
        self._on_message: Callable[[str, dict[str, Any]], None] | None = None
        self._on_lost: Callable[[str], None] | None = None
        self._lost = ""
        self._closed = False

    @property
    def on_message(self) -> Callable[[str, dict[str, Any]], None] | None:
        return self._on_message

    @on_message.setter
    def on_message(self, handler: Callable[[str, dict[str, Any]], None] | None) -> None:
        self._on_message = handler
        while self._waiting and self._on_message is not None:
            self._on_message(*self._waiting.popleft())

    @property
    def on_lost(self) -> Callable[[str], None] | None:
        return self._on_lost

    @on_lost.setter
    def on_lost(self, handler: Callable[[str], None] | None) -> None:
        self._on_lost = handler
        if self._lost and handler is not None:
            handler(self._lost)

    def send(self, kind: str, **values: Any) -> None:
        """Send a message. On a connection that is lost it is dropped; `on_lost` says that it is."""
        if self.transport is None or self._lost or self._closed:
            return
        body = _encode((kind, values))
        if len(body) > LARGEST_FRAME:
            raise ValueError(f"a {kind!r} message of {len(body)} bytes is over the limit of {LARGEST_FRAME}")
        self.transport.write(len(body).to_bytes(4, "little") + body)

    async def receive(self) -> Message:
        """The next message, where `on_message` is not set. Raises ConnectionError when the connection is lost."""
        while not self._waiting:
            if self._lost or self._closed:
                raise ConnectionError(self._lost or f"the connection to {self.peer} was closed")
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()

    def close(self) -> None:
        """Send what waits and close; `on_lost` is not called."""
        self._closed = True
        self._arrived.set()
        if self.transport is not None:
            self.transport.close()

    def abort(self, reason: str) -> None:
        """Give the connection up at once, as lost for that reason."""
        self._lose(reason)
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        watch_silence(transport.get_extra_info("socket"))

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(f"the connection to {self.peer} " + (f"failed: {error}" if error else "was closed by it"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4 and not self._lost and not self._closed:
            size = int.from_bytes(self._received[:4], "little")
            if size > self.largest:
                self.abort(f"{self.peer} sent a frame of {size} bytes; the limit is {self.largest}")
                return
            if len(self._received) < 4 + size:
                return
            body = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            try:
                message = _decode(body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                self.abort(f"{self.peer} sent a malformed frame: {error}")
                return
            self._deliver(message)

    def _deliver(self, message: Message) -> None:
        if self._on_message is not None:
            self._on_message(*message)
        else:
            self._waiting.append(message)
            self._arrived.set()

    def _lose(self, reason: str) -> None:
        if self._lost or self._closed:
            return
        self._lost = reason
        self._arrived.set()
        if self._on_lost is not None:
            self._on_lost(reason)


def watch_silence(connection: socket.socket) -> None:
    """Have the kernel probe an idle TCP connection every second, and give it up after four seconds without an answer.

    It fails with ETIMEDOUT then, whether or not there is something to send.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _SILENCE - 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE * 1000)


def proof(secret: bytes, challenge: bytes, nonce: bytes) -> bytes:
    """What only a holder of the run's secret can answer to a challenge."""
    return hmac.digest(secret, b"dragon join\0" + challenge + nonce, "sha256")


async def join(
    token: Token, node: NodeDescriptor, addresses: list[str], port: int, timeout: float
) -> tuple[Membership, Control]:
    """Join the run of a token as `node`, whose agent listens at `addresses` and `port` for the others.

    Returns once all nodes of the run are there. Raises JoinError after `timeout` seconds, or where the front end does
    not answer, is not the token's, or refuses.
    """
    control: Control | None = None
    joined = False
    try:
        async with asyncio.timeout(timeout):
            control = await _connect(token, timeout)
            await _greet(control, token, Member(node=node, addresses=addresses, port=port))
            membership = await _membership(control)
        joined = True
        return membership, control
    except TimeoutError:
        step = f"{control.peer} did not report the run complete" if control else "no connection to the front end"
        raise JoinError(f"{node.host_name}: {step} within {timeout:g} s") from None
    except ConnectionError as error:
        raise JoinError(f"{node.host_name}: {error}; the front end has ended, or did not accept the secret") from error
    finally:
        if control is not None and not joined:
            control.abort("could not join")


async def _connect(token: Token, timeout: float) -> Control:
    # An address that the firewall swallows must not use up the time of the others.
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout - min(1.0, timeout / 4)
    failures: dict[str, str] = {}
    context = pinned_context()
    while loop.time() < end:
        refused = 0
        for address in token.addresses:
            try:
                async with asyncio.timeout(_PER_ADDRESS):
                    return await _call(address, token.fingerprint, context)
            except TimeoutError:
                failures[address] = f"no answer in {_PER_ADDRESS:g} s"
            except (OSError, JoinError) as error:
                failures[address] = str(error)
                refused += isinstance(error, ConnectionRefusedError)
        if token.listening and refused == len(token.addresses):
            break  # it listened before it started this agent, so it has ended
        await asyncio.sleep(_BETWEEN_ROUNDS)
    told = "; ".join(f"{address}: {reason}" for address, reason in failures.items())
    raise JoinError(f"{socket.gethostname()} cannot reach the front end ({told}). Check routes and firewalls to it")


async def _call(address: str, expected: str, context: ssl.SSLContext) -> Control:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    transport, control = await loop.create_connection(
        lambda: Control(f"the front end ({address})"), host.strip("[]"), int(port), ssl=context
    )
    certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    if certificate is None or not hmac.compare_digest(fingerprint(certificate), expected):
        control.close()
        raise JoinError("somebody else listens there: the certificate is not the run's")
    return control


async def _greet(control: Control, token: Token, member: Member) -> None:
    from dragon import __version__

    kind, values = await control.receive()
    challenge = values.get("nonce")
    if kind != "challenge" or not isinstance(challenge, bytes) or len(challenge) != NONCE_SIZE:
        raise JoinError(f"{control.peer} does not speak this version's language (it sent {kind!r})")
    nonce = os.urandom(NONCE_SIZE)
    control.send(
        "join",
        nonce=nonce,
        proof=proof(token.secret, challenge, nonce),
        version=__version__,
        index=token.index,
        member=member,
    )


async def _membership(control: Control) -> Membership:
    kind, values = await control.receive()
    if kind == "refused":
        raise JoinError(f"{control.peer} refused this node: {values.get('reason')}")
    if kind == "end":
        raise JoinError(f"{control.peer} gave the run up before it began")
    if kind != "membership":
        raise JoinError(f"{control.peer} sent {kind!r} where the membership was due")
    return msgspec.convert(values, Membership)
