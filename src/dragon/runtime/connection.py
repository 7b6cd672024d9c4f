"""Connections: the two ends of a pipe, which can be sent to any process of the run."""

from __future__ import annotations

import multiprocessing.connection
from multiprocessing import BufferTooShort, reduction, resource_sharer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dragon.runtime.handle import Channel

if TYPE_CHECKING:
    from _typeshed import HasFileno
    from typing_extensions import Buffer

    from dragon.infrastructure.start_request import Name, Output

READER, WRITER = 1, 2
# The writer of a pipe waits while messages of this size are in flight: programs expect of a pipe that it slows down a
# writer that is faster than the reader. More would leave the processors' caches.
PIPE_MEBIBYTES = 4


# Programs recognize connections by the standard library's class; all its methods are replaced.
mp_connection: Any = multiprocessing.connection


class Connection(mp_connection.Connection):  # type: ignore[misc]
    """One end of a pipe, with the interface of `multiprocessing.connection.Connection`.

    Raises EOFError once the other end is closed everywhere and everything was received, BrokenPipeError when sending to
    an end that is closed everywhere, OSError when this end is closed or of the wrong direction.
    """

    def __init__(self, reader: Channel | None, writer: Channel | None) -> None:
        self._reader = reader
        self._writer = writer
        self._open = True
        self._readable, self._writable = reader is not None, writer is not None

    def __reduce__(self) -> tuple[object, ...]:
        self._check()
        return Connection, (self._reader if self._readable else None, self._writer)

    def __repr__(self) -> str:
        state = "closed" if self.closed else ("r" if self.readable else "") + ("w" if self.writable else "")
        return f"<Connection {state}>"

    def _check(self) -> None:
        if not self._open:
            raise OSError("handle is closed")

    def _in(self) -> Channel:
        self._check()
        if self._reader is None or not self._readable:
            raise OSError("connection is write-only")
        return self._reader

    def _out(self) -> Channel:
        self._check()
        if self._writer is None:
            raise OSError("connection is read-only")
        return self._writer

    @property
    def closed(self) -> bool:
        """Whether this end was closed in this process."""
        return not self._open or any(c._closed for c in (self._reader, self._writer) if c is not None)

    @property
    def readable(self) -> bool:
        """Whether this end can receive."""
        return self._readable

    @property
    def writable(self) -> bool:
        """Whether this end can send."""
        return self._writable

    def send(self, obj: object) -> None:
        """Send a picklable object."""
        self._out().put(obj)

    def recv(self) -> Any:
        """Wait for the next object and return it."""
        return self._in().get()

    def send_bytes(self, buffer: Buffer, offset: int = 0, size: int | None = None) -> None:
        """Send `size` bytes of a buffer from `offset` on, as one message. Without `size`, all that follow."""
        out = self._out()
        view = memoryview(buffer).cast("B")
        if offset < 0:
            raise ValueError("offset is negative")
        if len(view) < offset:
            raise ValueError("buffer length < offset")
        if size is None:
            size = len(view) - offset
        elif size < 0:
            raise ValueError("size is negative")
        elif offset + size > len(view):
            raise ValueError("buffer length < offset + size")
        out._put_bytes(view, offset, size)

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        """Return the next message as bytes.

        Raises OSError if it is longer than `maxlength`. Then this end cannot receive any more, and is closed if it
        cannot send either.
        """
        channel = self._in()
        if maxlength is not None and maxlength < 0:
            raise ValueError("negative maxlength")
        data = channel._get_bytes(None)
        if maxlength is not None and len(data) > maxlength:
            self._readable = False
            if self._writer is None:
                self.close()
            raise OSError(f"the message has {len(data)} bytes, the limit is {maxlength}")
        return data

    def recv_bytes_into(self, buffer: Buffer, offset: int = 0) -> int:
        """Receive the next message into a writable buffer and return its size in bytes.

        Raises BufferTooShort, which holds the message, if it does not fit.
        """
        channel = self._in()
        view = memoryview(buffer).cast("B")
        if offset < 0:
            raise ValueError("negative offset")
        if offset > len(view):
            raise ValueError("offset too large")
        data = channel._get_bytes(None)
        if len(data) > len(view) - offset:
            raise BufferTooShort(data)
        view[offset : offset + len(data)] = data
        return len(data)

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Return whether recv() would return or raise immediately, after waiting at most `timeout` seconds (None: no
        limit)."""
        return self._in()._wait_readable(timeout)

    def fileno(self) -> int:
        """Return a file descriptor that is readable whenever this end is, for select() and similar functions."""
        return self._in()._fileno()

    def close(self) -> None:
        """Close this end in this process."""
        self._open = False
        for channel in (self._reader, self._writer):
            if channel is not None:
                channel._close()


class ConnectionOptions(SimpleNamespace):
    """Options of dragonhpc's connections, which have no effect: memory for messages of any size is found by itself."""

    def __init__(
        self,
        creation_policy: object = None,
        min_block_size: int | None = None,
        large_block_size: int | None = None,
        huge_block_size: int | None = None,
        default_pool: object = None,
    ) -> None:
        super().__init__(
            creation_policy=creation_policy,
            min_block_size=min_block_size,
            large_block_size=large_block_size,
            huge_block_size=huge_block_size,
            default_pool=default_pool,
        )


class PipeOptions(SimpleNamespace):
    """Options of dragonhpc's pipes, which have no effect."""

    def __init__(self, creation_policy: object = None, conn_options: ConnectionOptions | None = None) -> None:
        super().__init__(creation_policy=creation_policy, conn_options=conn_options)


def _send_handle(connection: HasFileno, handle: int, destination_pid: int | None) -> None:
    """Send a file descriptor, as multiprocessing.reduction.send_handle() does, also over our connections."""
    if isinstance(connection, Connection):
        connection.send(resource_sharer.DupFd(handle))
    else:
        _standard_handles[0](connection, handle, destination_pid)


def _receive_handle(connection: HasFileno) -> int:
    """Receive a file descriptor, as multiprocessing.reduction.recv_handle() does, also over our connections."""
    if isinstance(connection, Connection):
        return int(connection.recv().detach())
    return int(_standard_handles[1](connection))


# The standard library sends descriptors over Unix sockets, which our connections are not.
_standard_handles = reduction.send_handle, reduction.recv_handle
reduction.send_handle, reduction.recv_handle = _send_handle, _receive_handle  # type: ignore[assignment]


def Pipe(duplex: bool = True, *, channels: object = None, options: object = None) -> tuple[Connection, Connection]:
    """Return two connected ends: both of them send and receive, or (receiving, sending) if not `duplex`.

    A writer waits while 4 MiB of messages are in flight; one message of any size always fits. `channels` and `options`
    have no effect.
    """
    first_in, second_out = _one_way(PIPE_MEBIBYTES)
    if not duplex:
        return Connection(first_in, None), Connection(None, second_out)
    second_in, first_out = _one_way(PIPE_MEBIBYTES)
    return Connection(first_in, first_out), Connection(second_in, second_out)


def _one_way(mebibytes: int) -> tuple[Channel, Channel]:
    reader = Channel(0, True, READER, mebibytes=mebibytes)
    offset, generation, role = reader._name()
    # For a moment the channel has no writer; no other process can see it yet.
    writer = Channel._attached((offset, generation, role - READER + WRITER))
    return reader, writer


def connect_pipes(streams: list[Output]) -> dict[int, Connection]:
    """Make the connections of the standard streams that are PIPEs.

    Returns our ends by the number of the stream. The other end's name is put into the element of `streams`.
    """
    ends = {}
    for number, output in enumerate(streams):
        if output.kind != "pipe":
            continue
        # The agent, which writes output, must not wait: it limits what is in flight by itself.
        reader, writer = _one_way(PIPE_MEBIBYTES if number == 0 else 0)
        reading, writing = Connection(reader, None), Connection(None, writer)
        ours, theirs = (writing, reading) if number == 0 else (reading, writing)
        channel = reader if number == 0 else writer
        # Keeps the other end alive until the agent is attached: the handle that is dropped here must not close it.
        channel._send()
        streams[number] = output._replace(channel=channel._name())
        theirs.close()
        ends[number] = ours
    return ends


def own_end(number: int, name: Name) -> Connection:
    """Return the creator's end of a process's standard stream, from the name of its channel."""
    channel = Channel._attached(name)
    return Connection(None, channel) if number == 0 else Connection(channel, None)
