"""The connection between the front end and an agent, and how an agent joins its run.

A frame is a length (4 bytes, little-endian) and a message: one of this module, or one of a session. An agent joins in
these steps:

1. The agent connects to one of the token's addresses with TLS and compares the certificate's fingerprint with the
   token's. Unless they match it sends nothing.
2. The front end sends a Challenge with a nonce.
3. The agent replies with Join: its own nonce, an HMAC of both under the run's secret, and the description of the node.
   A recorded greeting has an old nonce and proves nothing.
4. The front end sends Welcome once all nodes have joined, or Refused with the reason.

The kernel probes the other side every second (`watch_silence`), so a broken network is noticed within five seconds. It
probes the machine, not the process, so a busy loop or Ctrl-Z is not mistaken for a lost node.

While a run lasts, a connection that breaks is replaced by another one, over which each side sends again what the other
has not received. A connection that is closed, or is silent for too long, is not replaced: the other side has ended, or
is out of reach.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import operator
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, cast

from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.membership import Member, Membership, Token
from dragon.infrastructure.messages import decoder_of
from dragon.infrastructure.node_desc import NodeDescriptor
from dragon.infrastructure.structs import msgspec
from dragon.runtime.credentials import fingerprint, pinned_context
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.request import Request, frame
from dragon.runtime.rpc import Answered, Asked, Frame, Session

log = runtime_log("control")

LARGEST_FRAME = 64 * 2**20  # bytes
_SILENCE_TIMEOUT_S = 4
_REPLACE_TIMEOUT_S = 1.0  # seconds within which a broken connection must be replaced
_ACKNOWLEDGE_MESSAGES = 64  # after which the other side learns that they were received
_ACKNOWLEDGE_BYTES = 2**18
# What a connection that was reset fails with; one that is silent for too long fails with ETIMEDOUT.
_BROKEN = ConnectionResetError, ConnectionAbortedError, BrokenPipeError

_encode = msgspec.msgpack.Encoder().encode


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message about the connection itself."""


class Challenge(Message, frozen=True):
    """The front end's first message."""

    nonce: bytes


class Join(Message, frozen=True):
    """An agent's reply to Challenge. Index and member are read only if the version is the same."""

    nonce: bytes
    proof: bytes
    version: str
    index: object
    member: object


class Refused(Message, frozen=True):
    """The agent may not join the run, for that reason."""

    reason: str


class Joined(Message, frozen=True):
    """The agent has joined, and waits for the other nodes. `seat` is the number by which it resumes its connection."""

    seat: int


class Welcome(Message, frozen=True):
    """All nodes have joined."""

    membership: Membership


class Received(Message, frozen=True):
    """The sender has received `count` messages over this connection and those before it; this message is not counted.
    The other side keeps those that come after them, in case the connection breaks."""

    count: int


class Resume(Message, frozen=True):
    """The reply to Challenge of an agent whose connection broke. `seat` is as in Joined, `count` as in Received."""

    nonce: bytes
    proof: bytes
    seat: int
    count: int


class Resumed(Message, frozen=True):
    """The connection replaces the broken one. `count` is as in Received."""

    count: int


class End(Message, frozen=True):
    """End everything on this node, then send Bye."""


# Returns a message, which refers to the data. Raises msgspec.MsgspecError for anything else.
_decode: Callable[[bytes], Message | Frame] = decoder_of(
    functools.reduce(operator.or_, [*Message.__subclasses__(), *Frame.__subclasses__()])
).decode


class Control(asyncio.Protocol):
    """One end of a control connection. All calls must be made in the event loop in which it was made. `on_lost` is
    called with the reason when the connection ends without close() on this side, even if it is set afterwards.

    Attributes:
        peer: what the other side is called in messages.
        largest: the most bytes of a frame that is accepted.
        transport: the connection, or None while it is broken.
        lasts: whether a connection that breaks may be replaced.
        on_broken: the function that is called to replace it, on the side that does this.
        received: how many messages have arrived; the connections are counted together.
    """

    def __init__(self, peer: str, largest: int = LARGEST_FRAME) -> None:
        self.peer = peer
        self.largest = largest
        self.transport: asyncio.Transport | None = None
        self.lasts = False
        self.on_broken: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._task: asyncio.Task[None] | None = None  # of it
        self.received = 0
        self._session = Session(self._send_body, self._refuse)
        self._unread = bytearray()
        self._acknowledged = 0  # of what was received, by this side
        self._unacknowledged_bytes = 0
        self._sent: deque[bytes] = deque()  # what the other side has not acknowledged
        self._dropped = 0  # messages that it has acknowledged
        self._replacing: asyncio.TimerHandle | None = None
        self._waiting: deque[Message | Frame] = deque()
        self._arrived: asyncio.Event = asyncio.Event()
        self._is_served = False
        self._on_end: Callable[[], None] | None = None
        self._on_lost: Callable[[str], None] | None = None
        self._lost = ""
        self._was_reset = False
        self._closed = False
        self._loop = asyncio.get_running_loop()

    def serve(self, serve: Callable[[msgspec.Raw], object], on_end: Callable[[], None] | None = None) -> None:
        """Have requests, also those that have arrived, handled by `serve` (see Session), and End by `on_end`."""
        self._session.serve, self._on_end, self._is_served = serve, on_end, True
        while self._waiting:
            self._deliver(self._waiting.popleft())

    def _refuse(self, body: msgspec.Raw) -> None:
        raise AssertionError("no request is delivered before serve()")

    @property
    def on_lost(self) -> Callable[[str], None] | None:
        return self._on_lost

    @on_lost.setter
    def on_lost(self, handler: Callable[[str], None] | None) -> None:
        self._on_lost = handler
        if self._lost and handler is not None:
            handler(self._lost)

    @property
    def is_over(self) -> bool:
        """Whether the connection was closed or lost, and not only broken."""
        return self._closed or bool(self._lost)

    def ask(self, request: Request[object]) -> asyncio.Future[msgspec.Raw]:
        """Send a request. Returns a future of the encoded answer, which fails with ConnectionError or RemoteError."""
        future: asyncio.Future[msgspec.Raw] = self._loop.create_future()
        if self.is_over:
            future.set_exception(ConnectionError(self._lost or f"the connection to {self.peer} was closed"))
        else:
            self._session.ask(request, future)
        return future

    def send(self, message: Message | Request[None]) -> None:
        """Send a message, or a request that is not answered; dropped if the connection is over. Raises ValueError."""
        self._send_body(_encode(message if isinstance(message, Message) else Asked(0, message)))

    def _send_body(self, body: bytes) -> int:
        if len(body) > LARGEST_FRAME:
            raise ValueError(f"a message of {len(body)} bytes is over the limit of {LARGEST_FRAME}")
        if not self.is_over:
            self._sent.append(body)
            self._write(body)
        return 0

    def replace(self, other: Control, count: int) -> None:
        """Go on over the connection of `other`."""
        if other.transport is None or other.is_over:
            raise ConnectionError(other._lost or f"the connection to {self.peer} was closed")
        broken, self.transport, other.transport = self.transport, other.transport, None
        if self._replacing is not None:
            self._replacing.cancel()
            self._replacing = None
        if broken is not None:  # this side has not noticed it
            broken.set_protocol(asyncio.Protocol())
            broken.abort()
        self.transport.set_protocol(self)
        self._drop(count)
        for body in self._sent:
            self._write(body)
        self._unread = other._unread
        while other._waiting and not self.is_over:
            self._handle(other._waiting.popleft(), 0)

    async def receive(self) -> Message | Frame:
        """Return the next message, before serve()."""
        while not self._waiting:
            if self.is_over:
                kind = ConnectionResetError if self._was_reset else ConnectionError
                raise kind(self._lost or f"the connection to {self.peer} was closed")
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()

    def close(self) -> None:
        """Send pending messages and close; `on_lost` is not called."""
        self._closed = True
        self._arrived.set()
        if self.transport is not None:
            self.transport.close()

    def drop(self) -> None:
        """Discard what the peer has not received since close()."""
        if self._closed and self.transport is not None:
            self.transport.abort()

    def abort(self, reason: str) -> None:
        """End the connection at once, as lost for that reason."""
        self._lose(reason)
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and enable probes of the peer."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of it
        watch_silence(transport.get_extra_info("socket"))

    def connection_lost(self, error: Exception | None) -> None:
        """Have the connection replaced if it is broken, or report why it ended."""
        self.transport = None
        reason = f"the connection to {self.peer} " + (f"failed: {error}" if error else "was closed by it")
        self._was_reset = isinstance(error, _BROKEN)
        if not self.lasts or self.is_over or not self._was_reset:
            self._lose(reason)
            return
        self._replacing = self._loop.call_later(_REPLACE_TIMEOUT_S, self._lose, reason)
        if self.on_broken is not None:
            self._task = self._loop.create_task(self.on_broken())

    def data_received(self, data: bytes) -> None:
        """Decode complete frames and deliver their messages."""
        self._unread += data
        while len(self._unread) >= 4 and not self.is_over:
            size = int.from_bytes(self._unread[:4], "little")
            if size > self.largest:
                self.abort(f"{self.peer} sent a frame of {size} bytes; the limit is {self.largest}")
                return
            if len(self._unread) < 4 + size:
                return
            body = bytes(self._unread[4 : 4 + size])
            del self._unread[: 4 + size]
            try:
                message = _decode(body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                self.abort(f"{self.peer} sent a malformed frame: {error}")
                return
            self._handle(message, size)

    def _handle(self, message: Message | Frame, size: int) -> None:
        if isinstance(message, Received):
            self._drop(message.count)
            return
        self.received += 1
        self._acknowledge(size)
        if self._is_served or isinstance(message, Answered):
            self._deliver(message)
        else:
            self._waiting.append(message)
            self._arrived.set()

    def _deliver(self, message: Message | Frame) -> None:
        if isinstance(message, Frame):
            self._session.receive(message)
        elif isinstance(message, End) and self._on_end is not None:
            self._on_end()
        else:
            log.warning("%s sent %r, which is not expected", self.peer, message)

    def _acknowledge(self, size: int) -> None:
        """Tell the other side what was received, if that is much."""
        self._unacknowledged_bytes += size
        many = self.received - self._acknowledged >= _ACKNOWLEDGE_MESSAGES
        if self.lasts and (many or self._unacknowledged_bytes >= _ACKNOWLEDGE_BYTES):
            self._acknowledged, self._unacknowledged_bytes = self.received, 0
            self._write(_encode(Received(self.received)))

    def _write(self, body: bytes) -> None:
        """Write a message, unless the connection is broken."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(frame(body))

    def _drop(self, count: int) -> None:
        """Keep the first `count` messages that were sent no longer."""
        if not self._dropped <= count <= self._dropped + len(self._sent):
            sent = self._dropped + len(self._sent)
            self.abort(f"{self.peer} has received {count} messages, of {sent} that were sent")
            return
        while self._dropped < count:
            self._sent.popleft()
            self._dropped += 1

    def _lose(self, reason: str) -> None:
        if self.is_over:
            return
        self._lost = reason
        self._sent.clear()
        self._arrived.set()
        for future in self._session.end_epochs(1):
            future.set_exception(ConnectionError(reason))
        if self._on_lost is not None:
            self._on_lost(reason)


def watch_silence(connection: socket.socket) -> None:
    """Let the kernel probe an idle TCP connection every second, and end it after four seconds without an answer."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _SILENCE_TIMEOUT_S - 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_TIMEOUT_S * 1000)


_Answer = TypeVar("_Answer", Joined, Welcome)

NONCE_SIZE = 32
_PER_ADDRESS = 3.0  # seconds
_BETWEEN_ROUNDS = 0.2  # seconds
_BETWEEN_REPLACEMENTS_S = 0.1


class JoinError(DragonError):
    """Raised if a node could not join its run; the message says at which step, and what to check."""


def proof(secret: bytes, challenge: bytes, nonce: bytes) -> bytes:
    """Return the answer to a challenge, which only a holder of the run's secret can compute."""
    return hmac.digest(secret, b"dragon join\0" + challenge + nonce, "sha256")


async def join(
    token: Token, node: NodeDescriptor, addresses: list[str], port: int, timeout: float
) -> tuple[Membership, Control]:
    """Join the run of a token as `node`, whose agent listens at `addresses` and `port` for the others."""
    control: Control | None = None
    joined = False
    try:
        async with asyncio.timeout(timeout):
            nonce = os.urandom(NONCE_SIZE)
            while True:
                address, control = await _connect(token, timeout)
                try:
                    await _greet(control, token, nonce, Member(node=node, addresses=addresses, port=port))
                    seat = (await _answer(control, Joined)).seat
                    control.lasts, control.on_broken = True, partial(_replace, control, token, address, seat)
                    break
                except ConnectionResetError:  # it has no seat yet by which to resume the connection
                    await asyncio.sleep(_BETWEEN_REPLACEMENTS_S)
            membership = (await _answer(control, Welcome)).membership
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


async def _connect(token: Token, timeout: float) -> tuple[str, Control]:
    """Return the front end's address, and a connection to it."""
    # An address that a firewall drops must not use up the time of the others.
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout - min(1.0, timeout / 4)
    failures: dict[str, str] = {}
    context = pinned_context()
    while loop.time() < end:
        refused = 0
        for address in token.addresses:
            try:
                async with asyncio.timeout(_PER_ADDRESS):
                    return address, await _call(address, token.fingerprint, context)
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
        raise JoinError("another program listens there: the certificate is not the run's")
    return control


async def _greet(control: Control, token: Token, nonce: bytes, member: Member) -> None:
    from dragon import __version__

    control.send(Join(nonce, await _prove(control, token, nonce), __version__, token.index, member))


async def _prove(control: Control, token: Token, nonce: bytes) -> bytes:
    """Return the answer to the front end's challenge with a nonce."""
    challenge = await control.receive()
    if not isinstance(challenge, Challenge) or len(challenge.nonce) != NONCE_SIZE:
        raise JoinError(f"{control.peer} does not use this version's protocol (it sent {challenge!r})")
    return proof(token.secret, challenge.nonce, nonce)


async def _answer(control: Control, kind: type[_Answer]) -> _Answer:
    """Return the next message, which has to be of that kind."""
    match await control.receive():
        case kind() as answer:
            return answer
        case Refused(reason):
            raise JoinError(f"{control.peer} refused this node: {reason}")
        case End():
            raise JoinError(f"{control.peer} ended the run before it began")
        case message:
            raise JoinError(f"{control.peer} sent {message!r} instead of {kind.__name__}")


async def _replace(control: Control, token: Token, address: str, seat: int) -> None:
    """Connect again until a connection replaces the broken one, or the time for that is over."""
    context = pinned_context()
    while not control.is_over:
        other: Control | None = None
        try:
            async with asyncio.timeout(_PER_ADDRESS):
                other = await _call(address, token.fingerprint, context)
                nonce = os.urandom(NONCE_SIZE)
                other.send(Resume(nonce, await _prove(other, token, nonce), seat, control.received))
                answer = await other.receive()
            if not isinstance(answer, Resumed):
                why = answer.reason if isinstance(answer, Refused) else f"it sent {answer!r}"
                control.abort(f"{control.peer} does not replace the broken connection: {why}")
            elif not control.is_over:
                control.replace(other, answer.count)
                return
        except (ConnectionRefusedError, JoinError) as error:
            control.abort(f"the connection to {control.peer} broke and cannot be replaced: {error}")
        except OSError:
            await asyncio.sleep(_BETWEEN_REPLACEMENTS_S)
        finally:
            if other is not None and other.transport is not None:
                other.abort("it was not used")
