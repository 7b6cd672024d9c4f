"""The rendezvous of a run's agents: authenticates them, tracks which are missing, and sends each its membership.

It also takes the connections by which agents replace broken ones, as long as the run lasts.

A caller that cannot prove the run's secret is refused without information, and does not disturb the others: one that
sends nothing, or no TLS, is dropped after five seconds; frames are limited and validated; a recorded greeting answers
an old challenge. Each kind of refusal is logged once.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
from typing import Any

import dragon
from dragon.control import (
    LARGEST_FRAME,
    NONCE_SIZE,
    Challenge,
    Control,
    End,
    Join,
    Joined,
    Refused,
    Resume,
    Resumed,
    Welcome,
    proof,
)
from dragon.infrastructure.membership import Member, Membership, Token, parent_of
from dragon.infrastructure.structs import msgspec
from dragon.launcher.base import Identity, LaunchError
from dragon.runtime.credentials import Authority, Callers, greeting_context, node_name
from dragon.runtime.log import Once, runtime_log

log = runtime_log("frontend")

_GREETING_TIMEOUT = 5.0
_PROGRESS_AFTER_S = 10.0  # seconds of waiting for nodes
_LARGEST_GREETING = 256 * 1024


class _Refused(Exception):
    """A caller is refused: `kind` is logged once, unless `expected`; `told` is sent to one that proved the secret."""

    def __init__(self, kind: str, told: str = "", expected: bool = False) -> None:
        super().__init__(told or kind)
        self.kind = kind
        self.told = told
        self.expected = expected


class Rendezvous:
    """Waits for the agents of `nodes`, named as the launcher names them, of which `spare` may be missing."""

    def __init__(self, nodes: list[str], identity: Identity | None = None, spare: int = 0) -> None:
        self.nodes = nodes
        self.spare = spare
        self.members: list[Member | None] = [None] * len(nodes)
        self.controls: list[Control | None] = [None] * len(nodes)
        self._free = {index: name.partition(".")[0] for index, name in enumerate(nodes)}  # the places that nobody has
        self._seats: list[Control] = []  # of all agents that have joined, also those that were lost since
        self.authority = Authority()
        self._identity = identity or Identity.create()
        self._log_once = Once(log)
        self._greeted: dict[bytes, Control] = {}  # by the nonces of the agents, which those keep while they join
        self._complete = asyncio.Event()
        self._failure = ""
        self._lost = 0  # nodes that were lost after they had joined
        self._not_started = 0
        self._reasons: list[str] = []  # why some nodes are missing
        self.announced = False
        self.port = 0  # until it listens
        self._loop = asyncio.get_running_loop()
        self._context = greeting_context(self._identity.certificate, self._identity.key)
        self._callers: Callers | None = None

    def listen(self, hosts: list[str], port: int = 0) -> Token:
        """Listen, and return the token for the agents. `hosts` are the addresses at which they connect."""
        alone = set(hosts) == {"127.0.0.1"}
        family = socket.AF_INET if alone or not socket.has_dualstack_ipv6() else socket.AF_INET6
        try:
            listener = socket.create_server(
                (hosts[0] if alone else "", port), family=family, backlog=4096, dualstack_ipv6=family == socket.AF_INET6
            )
        except OSError as error:
            raise LaunchError(
                f"cannot listen at port {port}: {os.strerror(error.errno or 0)}; give another --frontend-port, or none"
            ) from error
        self.port = listener.getsockname()[1]
        self._callers = Callers(listener, self._greet, self._log_once)
        addresses = [f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}" for host in hosts]
        token = self._identity.token(addresses)
        token.listening = True
        return token

    async def gather(self, timeout: float) -> None:
        """Wait until all nodes that can join have joined."""
        told = self._loop.call_later(_PROGRESS_AFTER_S, self._tell_of_missing, timeout)
        try:
            async with asyncio.timeout(timeout):
                await self._complete.wait()
        except TimeoutError:
            if self.controls.count(None) > self.spare:
                raise LaunchError(self._too_late(timeout)) from None
            self._reasons.append(self._too_late(timeout))
        finally:
            told.cancel()
        if self._failure:
            raise LaunchError(self._failure)

    def goes_without(self, count: int, reason: str) -> bool:
        """Note that `count` agents could not be started. Returns whether the run can continue without them."""
        self._not_started = count
        self._reasons.append(reason)
        self._look()
        return count <= self.spare

    def settle(self) -> None:
        """Restrict the run to the nodes that have joined. Raises LaunchError if one was lost meanwhile."""
        if self._failure:
            raise LaunchError(self._failure)
        there = [index for index, control in enumerate(self.controls) if control is not None]
        if len(there) == len(self.nodes):
            return
        absent = ", ".join(self._name(index) for index, control in enumerate(self.controls) if control is None)
        log.error("the run begins without %s: %s", absent, "; ".join(self._reasons))
        self.nodes = [self.nodes[index] for index in there]
        self.controls = [self.controls[index] for index in there]
        self.members = [self.members[index] for index in there]
        for index, member in enumerate(self.members):
            assert member is not None
            member.node = member.node._replace(index=index, is_primary=index == 0)

    def announce(self, settings: dict[str, Any]) -> None:
        self.announced = True
        known = [member for member in self.members if member is not None]
        for index, control in enumerate(self.controls):
            assert control is not None
            certificate, key = self.authority.issue(node_name(index))
            own = Membership(
                index=index,
                # The list is forwarded from node to node: for thousands of nodes it is too long to be sent to each.
                members=[] if index else known,
                parent=known[parent_of(index)] if index else None,
                authority=self.authority.certificate,
                certificate=certificate,
                key=key,
                settings=settings,
            )
            control.send(Welcome(own))

    def close(self) -> None:
        """Stop accepting connections; may be called again."""
        if self._callers is not None:
            self._callers.close()

    async def dismiss(self) -> None:
        """Send End to the agents that have joined: the run does not start."""
        self.close()
        joined = [control for control in self.controls if control is not None]
        for control in joined:
            control.send(End())
            control.close()
        await asyncio.sleep(0)
        for control in joined:
            control.drop()

    def _tell_of_missing(self, timeout: float) -> None:
        count, names = self._missing()
        log.warning("waiting up to %g s for %s%s", timeout, count, names)

    def _missing(self) -> tuple[str, str]:
        """Return how many nodes are missing, and after a colon which, if known."""
        missing = [name for name, member in zip(self.nodes, self.members, strict=True) if member is None]
        names = [name for name in missing if name]
        shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        return f"{len(missing)} of {len(self.nodes)} nodes", f": {shown}" if shown else ""

    def _too_late(self, timeout: float) -> str:
        count, names = self._missing()
        return (
            f"{count} did not join within {timeout:g} s{names}. Check that each can "
            f"reach this host ({socket.gethostname()}) at TCP port {self.port} (firewall, --network-prefix), and that "
            f"Python and dragon {dragon.__version__} are installed there at the same path; --join-timeout "
            "sets the time"
        )

    async def _greet(self, connection: socket.socket, address: str) -> None:
        control = Control(address, _LARGEST_GREETING)
        try:
            async with asyncio.timeout(_GREETING_TIMEOUT):
                await self._loop.connect_accepted_socket(lambda: control, connection, ssl=self._context)
                greeting = await self._hear(control)
                if isinstance(greeting, Resume):
                    self._resume(control, greeting)
                else:
                    self._admit(control, greeting)
        except TimeoutError:
            self._refuse(control, connection, _Refused(f"sent no valid greeting for {_GREETING_TIMEOUT:g} s"))
        except ConnectionError:
            # After the start it is a new connection of a node, in place of a broken one, that has broken too.
            kind = "broke off, or sent a frame that is malformed or too large"
            self._refuse(control, connection, _Refused(kind, expected=self.announced))
        except OSError:
            self._refuse(control, connection, _Refused("did not speak TLS"))
        except _Refused as refusal:
            self._refuse(control, connection, refusal)
        except asyncio.CancelledError:  # the rendezvous is over, or there are too many callers
            control.abort("came too late, or had sent no valid greeting yet")
            connection.close()
            raise

    async def _hear(self, control: Control) -> Join | Resume:
        challenge = os.urandom(NONCE_SIZE)
        control.send(Challenge(challenge))
        greeting = await control.receive()
        if not isinstance(greeting, Join | Resume) or len(greeting.nonce) != NONCE_SIZE:
            raise _Refused("sent something other than a greeting")
        if not hmac.compare_digest(greeting.proof, proof(self._identity.secret, challenge, greeting.nonce)):
            raise _Refused("did not know the secret of this run")
        return greeting

    def _resume(self, other: Control, greeting: Resume) -> None:
        """Replace the broken connection of a node."""
        control = self._seats[greeting.seat] if 0 <= greeting.seat < len(self._seats) else None
        if control is None or control.is_over:
            told = f"{'this node' if control is None else control.peer} does not belong to the run any more"
            # So it is when a node has ended, and its last connection was reset in place of being closed.
            raise _Refused("resumes a connection that is over", told, expected=True)
        other.send(Resumed(control.received))
        control.replace(other, greeting.count)
        log.info("the connection to %s broke, and was replaced", control.peer)

    def _admit(self, control: Control, greeting: Join) -> None:
        if greeting.version != dragon.__version__:
            told = f"it runs dragon {greeting.version}, and the front end {dragon.__version__}"
            raise _Refused("has another version", told)
        try:
            member = msgspec.convert(greeting.member, Member)
            index = msgspec.convert(greeting.index, int | None)
        except msgspec.ValidationError as error:
            raise _Refused("described itself in a way that is not understood", str(error)) from error
        joined = self._greeted.get(greeting.nonce)
        if joined is not None and not joined.is_over:
            joined.replace(control, 1)  # it was reset before the agent received Joined, which is sent again
            return
        if self.announced:
            raise _Refused("joined too late", "the run has begun without this node")
        index = self._place(member, index)
        member.node = member.node._replace(index=index, is_primary=index == 0)
        control.peer = self.nodes[index] or member.node.host_name
        control.largest = LARGEST_FRAME
        self.members[index], self.controls[index] = member, control
        del self._free[index]
        control.send(Joined(len(self._seats)))
        self._seats.append(control)
        self._greeted[greeting.nonce] = control
        control.lasts = True
        control.on_lost = lambda reason: self._lose(index, f"{control.peer} joined and was lost again: {reason}")
        self._look()

    def _lose(self, index: int, reason: str) -> None:
        self.controls[index] = None
        self._lost += 1
        self._reasons.append(reason)
        if self._lost > self.spare:
            self._failure = self._failure or reason
            self._complete.set()
        self._look()

    def _look(self) -> None:
        """Complete the rendezvous if all nodes have joined except those that will not."""
        if len(self._free) + self._lost <= min(self.spare, max(self._lost, self._not_started)):
            self._complete.set()

    def _name(self, index: int) -> str:
        member = self.members[index]
        return self.nodes[index] or (member.node.host_name if member else f"node {index}")

    def _place(self, member: Member, index: int | None) -> int:
        """Return the index of a node: the one that it sent, else that of its name, else the next free one."""
        if index is not None:
            if index not in self._free:
                raise _Refused(
                    "joined twice, or is not a node of the run", f"index {index} is taken, or does not exist"
                )
            return index
        short = member.node.host_name.partition(".")[0]
        for wanted in (short, ""):  # many agents of many nodes come in the order in which these were named
            for place, name in self._free.items():
                if name == wanted:
                    return place
        raise _Refused("joined twice, or is not a node of the run", f"{short!r} is not an expected node")

    def _refuse(self, control: Control, connection: socket.socket, refusal: _Refused) -> None:
        if control.transport is None:
            connection.close()
        elif refusal.told:
            control.send(Refused(refusal.told))
            control.close()
        else:
            control.abort(refusal.kind)
        if refusal.expected:
            return
        if refusal.told:
            log.warning("%s was refused: %s", control.peer, refusal.told)
        else:
            self._log_once(f"a caller from {{}} was refused: it {refusal.kind}", control.peer)
