"""How an agent joins its run, and replaces a connection to the front end that breaks."""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import ssl
from typing import TypeVar

from dragon.control.connection import Control
from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.membership import Member, Membership, Token
from dragon.infrastructure.node_desc import NodeDescriptor
from dragon.runtime.credentials import fingerprint, pinned_context
from dragon.runtime.protocol.front_end import Challenge, End, Join, Joined, Refused, Resume, Resumed, Welcome

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
                    _keep(control, token, address, (await _answer(control, Joined)).seat)
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


def _keep(control: Control, token: Token, address: str, seat: int) -> None:
    """Have the connection of a node replaced whenever it breaks."""
    replacing: set[asyncio.Task[None]] = set()  # the loop itself does not keep tasks

    def replace() -> None:
        task = asyncio.ensure_future(_replace(control, token, address, seat))
        replacing.add(task)
        task.add_done_callback(replacing.discard)

    control.lasts, control.on_broken = True, replace


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
