"""Large payloads over UCX: InfiniBand, RoCE, and whatever else it has a transport for.

A payload is sent in pieces, each a message with its own tag. The first tags of a link are random, and are exchanged
over the link itself, so no other messages are taken for its payloads. What is sent over the fabric is neither
encrypted nor signed.

Pieces are copied into and out of the agent's own buffers. UCX keeps memory registered with devices, by its address;
but any process of the node may give pages of the arena back to the kernel, and then the device's address refers to
other memory. (UCX 1.21 crashes when a peer is lost if it is told to keep nothing registered.) So only a little memory
is ever registered, and what a lost node left unfinished is not in the arena.

UCX gets processor time only when its descriptor is readable, and costs nothing in between.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dragon import _core
from dragon.agent.wire.handshake import Fabric, Greeting
from dragon.infrastructure.errors import DragonError
from dragon.runtime.log import runtime_log

if TYPE_CHECKING:
    from ucxx._lib import libucxx

log = runtime_log("fabric")

_DEVICES = Path("/sys/class/infiniband")
_AT_A_TIME = 64  # steps of progress before other work of the loop has its turn
_PIECE = 2 * 2**20  # bytes
_UNDER_WAY = 4  # pieces that a lane sends or receives at once in each direction
_KEPT = 32  # buffers
_RECHECK_S = 1.0  # seconds; an event that a device lost delays a payload at most this long
_TAGS = 1 << 64


@dataclass(eq=False, slots=True)
class _Operation:
    """An operation that UCX has not finished. Until it has, it may use the memory in `uses`."""

    request: libucxx.UCXRequest
    uses: object
    done: Callable[[], None]
    failed: Callable[[str], None]


class Ucx:
    """An agent's end of the fabric: a UCX worker.

    Args:
        options: values that replace those of UCX's environment variables, by name without `UCX_`

    Attributes:
        sent: bytes that were sent
        received: bytes that were received

    Raises ImportError without ucxx, and an exception of ucxx if there is nothing that UCX can use.
    """

    def __init__(self, options: dict[str, str] | None = None) -> None:
        os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")  # ucxx sets some that not every UCX knows
        os.environ.setdefault("UCX_LOG_FILE", "stderr")
        from ucxx._lib import arr, libucxx

        self.library = libucxx
        self.array = arr.Array
        self._context = libucxx.UCXContext(options or {}, (libucxx.Feature.TAG, libucxx.Feature.WAKEUP))
        self.worker = libucxx.UCXWorker(self._context, False, False)
        self.worker.init_blocking_progress_mode()
        self._address = self.worker.address.tobytes()
        self.sent = self.received = 0
        self._buffers: list[bytearray] = []
        self._operations: list[_Operation] = []
        self._due = self._watched = False
        self._loop = asyncio.get_running_loop()
        self._descriptor = self.worker.epoll_file_descriptor
        self._loop.add_reader(self._descriptor, self._progress)

    def reaches(self, devices: list[str]) -> bool:
        """Return whether UCX has a transport for one of these devices."""
        return any(f"/{device}:" in self._context.info for device in devices)

    def greet(self) -> Greeting:
        return Greeting("UCX", self._address, secrets.randbelow(_TAGS))

    def lane(self, own: Greeting, their: Greeting, peer: str, lost: Callable[[str], None]) -> _Beside:
        return _Beside(self, own, their, peer, lost)

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        log.info("UCX sent %d bytes and received %d", self.sent, self.received)

    def take_buffer(self) -> bytearray:
        return self._buffers.pop() if self._buffers else bytearray(_PIECE)

    def give_buffer(self, buffer: bytearray) -> None:
        if len(self._buffers) < _KEPT:
            self._buffers.append(buffer)

    def start(self, operation: _Operation) -> None:
        """Call its `done`, or `failed` with the reason, once the operation is finished."""
        self._operations.append(operation)
        self._soon()
        if not self._watched:
            self._watched = True
            self._loop.call_later(_RECHECK_S, self._watch)

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._progress)

    def _watch(self) -> None:
        self._watched = bool(self._operations)
        if self._watched:
            self._soon()
            self._loop.call_later(_RECHECK_S, self._watch)

    def _progress(self) -> None:
        self._due = False
        idle = any(not self.worker.progress_once() for _ in range(_AT_A_TIME))
        self._settle()
        # Once it is armed the descriptor tells of the next event. It cannot be while there is something to do.
        if not idle or not self.worker.arm():
            self._soon()

    def _settle(self) -> None:
        operations, self._operations = self._operations, []
        for operation in operations:
            if operation.request.completed:
                # By the loop: what comes of one must not keep the others from being finished.
                self._loop.call_soon(self._finish, operation)
            else:
                self._operations.append(operation)

    def _finish(self, operation: _Operation) -> None:
        try:
            operation.request.check_error()
        except self.library.UCXError as error:
            operation.failed(str(error))
        else:
            operation.done()


class _Beside:
    """The lane beside one link. It connects when the first payload is sent or received."""

    def __init__(self, fabric: Ucx, own: Greeting, their: Greeting, peer: str, lost: Callable[[str], None]) -> None:
        self._fabric = fabric
        self._next_in, self._next_out = own.tag, their.tag
        self._address = their.place
        self._peer = peer
        self._lost = lost
        self._outward: deque[memoryview] = deque()
        self._inward: deque[tuple[memoryview, Callable[[], None]]] = deque()
        self._sending = self._receiving = 0
        self._endpoint: libucxx.UCXEndpoint | None = None
        self._over = False  # closed, or not to be opened

    def open(self) -> bool:
        if self._endpoint is None and not self._over:
            try:
                self._endpoint = self._connect()
            except self._fabric.library.UCXError as error:
                self._over = True
                log.warning("%s cannot be reached by UCX (%s); payloads go there over TCP", self._peer, error)
        return self._endpoint is not None

    def _connect(self) -> libucxx.UCXEndpoint:
        library, worker = self._fabric.library, self._fabric.worker
        address = library.UCXAddress.create_from_buffer(self._address)
        # UCX is to tell when the other side is gone, or it ends this process when it notices. UCX's shared memory
        # cannot; so two agents of one machine use something else.
        return library.UCXEndpoint.create_from_worker_address(worker, address, True)

    def send(self, payload: memoryview) -> None:
        self._outward.extend(_pieces(payload))
        self._send_more()

    def receive(self, memory: _core.Payload, done: Callable[[], None]) -> None:
        pieces = list(_pieces(memoryview(memory)))
        missing = len(pieces)

        def arrived() -> None:
            nonlocal missing
            missing -= 1  # in any order: UCX finishes a small piece before a large one that was sent earlier
            if missing == 0:
                done()

        self._inward.extend((piece, arrived) for piece in pieces)
        if self.open():
            self._receive_more()
        else:
            self._fail("there is no way back")

    def _send_more(self) -> None:
        while self._outward and self._sending < _UNDER_WAY:
            piece, buffer = self._outward.popleft(), self._fabric.take_buffer()
            memoryview(buffer)[: len(piece)] = piece
            self._sending += 1
            self._start("tag_send", buffer, len(piece), self._next_out, partial(self._sent, buffer, len(piece)))
            self._next_out = (self._next_out + 1) % _TAGS

    def _sent(self, buffer: bytearray, size: int) -> None:
        self._fabric.sent += size
        self._fabric.give_buffer(buffer)
        self._sending -= 1
        self._send_more()

    def _receive_more(self) -> None:
        while self._inward and self._receiving < _UNDER_WAY:
            (piece, done), buffer = self._inward.popleft(), self._fabric.take_buffer()
            self._receiving += 1
            self._start("tag_recv", buffer, len(piece), self._next_in, partial(self._received, buffer, piece, done))
            self._next_in = (self._next_in + 1) % _TAGS

    def _received(self, buffer: bytearray, piece: memoryview, done: Callable[[], None]) -> None:
        self._fabric.received += len(piece)
        piece[:] = memoryview(buffer)[: len(piece)]
        self._fabric.give_buffer(buffer)
        self._receiving -= 1
        self._receive_more()
        done()

    def _start(self, method: str, buffer: bytearray, size: int, tag: int, done: Callable[[], None]) -> None:
        array, library = self._fabric.array(memoryview(buffer)[:size]), self._fabric.library
        try:
            request = getattr(self._endpoint, method)(array, library.UCXXTag(tag))
        except library.UCXError as error:
            self._fail(str(error))
        else:
            self._fabric.start(_Operation(request, array, done, self._fail))

    def _fail(self, reason: str) -> None:
        self._lost(f"UCX lost a payload: {reason}")

    def close(self) -> None:
        self._over = True
        self._lost = _ignore  # what is not finished is given up
        self._outward.clear()
        self._inward.clear()
        endpoint, self._endpoint = self._endpoint, None
        # For one that has failed there is nothing to wait for, and what close() returns then must not be touched.
        if endpoint is not None and endpoint.alive:
            self._fabric.start(_Operation(endpoint.close(), endpoint, _nothing, _ignore))


def _pieces(payload: memoryview) -> Iterator[memoryview]:
    return (payload[start : start + _PIECE] for start in range(0, len(payload), _PIECE))


def _nothing() -> None:
    return


def _ignore(reason: str) -> None:
    return


class FabricError(DragonError):
    """A node does not have the fabric that the run is to use."""


def active_devices(folder: Path = _DEVICES) -> list[str]:
    """The names of this machine's RDMA devices that have a port in use."""
    ports = sorted(folder.glob("*/ports/*/state"))
    return list(dict.fromkeys(port.parts[-4] for port in ports if "ACTIVE" in port.read_text()))


def open_fabric(transport: str, host_name: str, folder: Path = _DEVICES) -> Fabric | None:
    """Return UCX for "ucx", and for "" if there are an RDMA device and ucxx; else None. Raises FabricError."""
    if transport in ("tcp", "plain"):
        return None
    devices = active_devices(folder)
    if devices:
        # A UCX that was installed with the drivers supports the devices; the one in the wheel may not.
        os.environ.setdefault("RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY", "true")
    if transport == "ucx":
        return _wanted(host_name)
    return _for_devices(devices, host_name) if devices else None


def _wanted(host_name: str) -> Fabric:
    try:
        return Ucx()
    except ImportError as error:
        fix = "pip install 'dragon-runtime[rdma]'"
        raise FabricError(f"{host_name}: --transport ucx needs ucxx ({error}); there: {fix}") from error
    except Exception as error:
        raise FabricError(f"{host_name}: --transport ucx: UCX cannot be used: {error}") from error


def _for_devices(devices: list[str], host_name: str) -> Fabric | None:
    found = f"{host_name} has {', '.join(devices)}"
    try:
        # UCX was not requested, so it must not send payloads over an ordinary network instead of the links.
        fabric = Ucx({} if "UCX_TLS" in os.environ else {"TLS": "^tcp"})
    except ModuleNotFoundError:
        return None
    except Exception as error:
        log.warning("%s, but UCX cannot be used (%s); large payloads go over TCP", found, error)
        return None
    if fabric.reaches(devices):
        return fabric
    fabric.close()
    log.warning("%s, but the UCX there has no transport for them; large payloads go over TCP", found)
    return None
