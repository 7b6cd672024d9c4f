"""multiprocessing's managers over channels, which every node of the run can reach, encrypted between nodes."""

from __future__ import annotations

from multiprocessing import connection as mp_connection
from multiprocessing import managers as mp_managers
from multiprocessing.context import BaseContext

from dragon._core import DestroyedError
from dragon.infrastructure.messages import SerializedName
from dragon.infrastructure.structs import msgspec
from dragon.runtime.connection import Connection, Pipe
from dragon.runtime.handle import Channel


class _Listener:
    """The listener of a manager's server. Its address is the name of a channel into which callers put ends of pipes."""

    def __init__(self, address: bytes | None = None, backlog: int = 0) -> None:
        self._callers = Channel()
        self.address = msgspec.json.encode(self._callers._name())

    def accept(self) -> Connection:
        """Wait for the next caller and return its connection. Raises OSError if the listener is closed."""
        try:
            caller: Connection = self._callers.get()
        except DestroyedError as error:
            raise OSError("the listener is closed") from error
        return caller

    def close(self) -> None:
        """Accept no more callers."""
        if not self._callers._closed:
            self._callers._destroy()
            self._callers._close()


def _connect(address: bytes, authkey: bytes | None = None) -> Connection:
    """Connect to a server. Raises ConnectionRefusedError if it has ended."""
    ours, theirs = Pipe()
    try:
        callers = Channel._attached(msgspec.json.decode(address, type=SerializedName))
        callers.put(theirs)
        callers._close()
    except DestroyedError as error:
        raise ConnectionRefusedError("the manager has ended") from error
    theirs.close()
    if authkey is not None:
        mp_connection.answer_challenge(ours, authkey)
        mp_connection.deliver_challenge(ours, authkey)
    return ours


class _Serializer(str):
    """The name of this kind of connection, which is registered in each process that receives it."""

    def __reduce__(self) -> tuple[object, ...]:
        return _serializer, ()


_SERIALIZER = _Serializer("dragon")
mp_managers.listener_client[_SERIALIZER] = (_Listener, _connect)  # type: ignore[attr-defined]


def _serializer() -> _Serializer:
    return _SERIALIZER


def Manager(*, ctx: BaseContext) -> mp_managers.SyncManager:
    """Start a server process and return its manager."""
    manager = mp_managers.SyncManager(ctx=ctx.get_context(), serializer=_SERIALIZER)
    manager.start()
    return manager
