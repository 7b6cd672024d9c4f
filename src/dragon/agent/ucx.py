"""Large payloads over UCX: InfiniBand, RoCE, and whatever else it has a transport for.

Each payload is a message with a tag of its own. The first tags of a link are random, and told over the link itself, so
nobody else's messages are taken for its payloads. What crosses the fabric is neither encrypted nor signed.

UCX is given the processor when its descriptor says so, and costs nothing in between.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dragon.agent.bulk import Greeting
from dragon.runtime.folder import this_machine
from dragon.runtime.log import runtime_log

__all__ = ["Ucx"]

log = runtime_log("fabric")

_AT_A_TIME = 64  # steps of progress before others have their turn
_LOOK_AGAIN = 1.0  # seconds; an event that a device lost delays a payload no longer
_TAGS = 1 << 64


@dataclass(eq=False, slots=True)
class _Operation:
    """What UCX has not finished. Until it has, it may write to `uses`, or read from it."""

    request: Any
    uses: Any
    done: Callable[[], None]
    failed: Callable[[str], None]


class Ucx:
    """An agent's end of the fabric: a worker of UCX, with `options` in place of its variables without `UCX_`.

    `sent`, `received` count payloads, `bytes_sent`, `bytes_received` what was in them. Raises ImportError without ucxx,
    and what ucxx raises where UCX finds nothing to use.
    """

    def __init__(self, options: dict[str, str] | None = None) -> None:
        os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")  # ucxx sets some that not every UCX knows
        os.environ.setdefault("UCX_LOG_FILE", "stderr")
        from ucxx._lib import arr, libucxx

        self.library = libucxx
        self.array = arr.Array
        # Payloads are in the arena, pages of which any process of the node may give back to the kernel. Memory that UCX
        # kept registered would then be another than what is at its address.
        settings = {"RCACHE_ENABLE": "n", **(options or {})}
        self._context = libucxx.UCXContext(settings, (libucxx.Feature.TAG, libucxx.Feature.WAKEUP))
        self.worker = libucxx.UCXWorker(self._context, False, False)
        self.worker.init_blocking_progress_mode()
        self.machine = this_machine()
        self._address = self.worker.address.tobytes()
        self.sent = self.received = self.bytes_sent = self.bytes_received = 0
        self._operations: list[_Operation] = []
        self._due = self._watched = False
        self._loop = asyncio.get_running_loop()
        self._descriptor = self.worker.epoll_file_descriptor
        self._loop.add_reader(self._descriptor, self._progress)

    def reaches(self, devices: list[str]) -> bool:
        """Whether UCX has a transport for one of them."""
        return any(f"/{device}:" in self._context.info for device in devices)

    def greet(self) -> Greeting:
        return self._address, secrets.randbelow(_TAGS), self.machine

    def lane(self, told: Greeting, heard: Greeting, peer: str, lost: Callable[[str], None]) -> _Beside:
        return _Beside(self, told, heard, peer, lost)

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        log.info(
            "UCX sent %d payloads (%d bytes) and received %d (%d bytes)",
            self.sent,
            self.bytes_sent,
            self.received,
            self.bytes_received,
        )

    def start(self, request: Any, uses: Any, done: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Call `done`, or `failed` with the reason, once a request is finished."""
        self._operations.append(_Operation(request, uses, done, failed))
        self._soon()
        if not self._watched:
            self._watched = True
            self._loop.call_later(_LOOK_AGAIN, self._watch)

    def count_sent(self, size: int) -> None:
        """A payload has left."""
        self.sent, self.bytes_sent = self.sent + 1, self.bytes_sent + size

    def count_received(self, size: int) -> None:
        """A payload has come."""
        self.received, self.bytes_received = self.received + 1, self.bytes_received + size

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._progress)

    def _watch(self) -> None:
        self._watched = bool(self._operations)
        if self._watched:
            self._soon()
            self._loop.call_later(_LOOK_AGAIN, self._watch)

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
    """The lane beside one link. It connects when the first payload goes or comes."""

    def __init__(self, fabric: Ucx, told: Greeting, heard: Greeting, peer: str, lost: Callable[[str], None]) -> None:
        self._fabric = fabric
        self._next_in = told[1]
        self._address, self._next_out, self._machine = heard
        self._peer = peer
        self._lost = lost
        self._endpoint: Any = None
        self._over = False  # closed, or not to be opened

    def open(self) -> bool:
        if self._endpoint is None and not self._over:
            try:
                self._endpoint = self._connect()
            except self._fabric.library.UCXError as error:
                self._over = True
                log.warning("%s cannot be reached by UCX (%s); payloads go there over TCP", self._peer, error)
        return self._endpoint is not None

    def _connect(self) -> Any:
        library, worker = self._fabric.library, self._fabric.worker
        address = library.UCXAddress.create_from_buffer(self._address)
        connect = library.UCXEndpoint.create_from_worker_address
        try:
            return connect(worker, address, True)
        except library.UCXUnreachableError:
            # Shared memory cannot tell that the other side is gone; the link can. Between machines UCX has to tell,
            # or it ends this process when a device gives up.
            if self._machine != self._fabric.machine:
                raise
            return connect(worker, address, False)

    def send(self, payload: memoryview) -> None:
        tag, self._next_out = self._next_out, (self._next_out + 1) % _TAGS
        self._start("tag_send", payload, tag, partial(self._fabric.count_sent, len(payload)))

    def receive(self, memory: Any, done: Callable[[], None]) -> None:
        tag, self._next_in = self._next_in, (self._next_in + 1) % _TAGS
        view = memoryview(memory)

        def received() -> None:
            self._fabric.count_received(len(view))
            done()

        if self.open():
            self._start("tag_recv", view, tag, received)
        else:
            self._fail("there is no way back")

    def _start(self, method: str, payload: memoryview, tag: int, done: Callable[[], None]) -> None:
        try:
            request = getattr(self._endpoint, method)(self._fabric.array(payload), self._fabric.library.UCXXTag(tag))
        except self._fabric.library.UCXError as error:
            self._fail(str(error))
        else:
            self._fabric.start(request, payload, done, self._fail)

    def _fail(self, reason: str) -> None:
        self._lost(f"UCX lost a payload: {reason}")

    def close(self) -> None:
        self._over = True
        self._lost = _ignore  # what was under way is given up
        endpoint, self._endpoint = self._endpoint, None
        # For one that has failed there is nothing to wait for, and what close() returns then must not be touched.
        if endpoint is not None and endpoint.alive:
            self._fabric.start(endpoint.close(), endpoint, _nothing, _ignore)


def _nothing() -> None:
    return


def _ignore(reason: str) -> None:
    return
