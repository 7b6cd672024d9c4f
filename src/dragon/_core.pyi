"""The shared memory of a node: the arena, channels and synchronisation objects. Mechanism only."""

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, NotRequired, TypedDict, TypeVar, final

from typing_extensions import Buffer

from dragon.shards.records import Record
from dragon.shards.shard import Stored

_Result = TypeVar("_Result")

# The name of a shared object: offset, generation, role.
_Name = tuple[int, int, int]

class DestroyedError(ValueError):
    """The object does not exist any more: it was destroyed, or its run has ended."""

class LockedError(RuntimeError):
    """A needed lock is held by a process that does not continue, because it was stopped or gets no CPU time."""

class _Usage(TypedDict):
    limit: int
    committed: int
    in_use: int
    blocks: int

class Channel:
    """A first-in first-out queue of objects in shared memory.

    It holds `capacity` messages at most, 0: as many as there is memory for, and no more once they take `mebibytes` MiB.
    `role` is 1 for the reader of a pipe, 2 for its writer. `maker`, a puid, makes it a user's queue, which telemetry
    measures; or the tasks of a pool, with the channel of its `results` and the words `doing` with its workers' current
    tasks.
    """

    def __init__(
        self,
        capacity: int | _Name = 0,
        pipe: bool = False,
        role: int = 0,
        maker: int = 0,
        results: _Name = ...,
        doing: _Name = ...,
        mebibytes: int = 0,
    ) -> None: ...
    def put(
        self,
        obj: Any,
        block: bool = True,
        timeout: float | None = None,
        stream_channel: Any = None,
        flush: bool = False,
    ) -> None:
        """Put a copy of an object. Raises queue.Full after `timeout` seconds."""

    def put_nowait(self, obj: Any, stream_channel: Any = None, flush: bool = False) -> None:
        """Put an object, or raise queue.Full."""

    def get(self, block: bool = True, timeout: float | None = None, stream_channel: Any = None) -> Any:
        """Take the oldest object. Raises queue.Empty after `timeout` seconds."""

    def get_nowait(self, stream_channel: Any = None) -> Any:
        """Take the oldest object, or raise queue.Empty."""

    def _put_bytes(self, buffer: Buffer, start: int, size: int, /) -> None: ...
    def _get_bytes(self, timeout: float | None) -> bytes: ...
    def _put_task(self, task: Any, ticket: int) -> None:
        """Put an object with its ticket."""

    def _get_task(self, doing: Words, index: int) -> Any:
        """Wait for the oldest object and take it.

        Word `index` of `doing` is 0 meanwhile, and is set to the object's ticket before it is taken: if the taker dies
        at any point, its task is known.
        """

    def _put_parts(self, kind: int, buffer: Buffer, timeout: float | None, ticket: int = 0) -> None: ...
    def _put_back(self, kind: int, buffer: Buffer) -> None:
        """Put a message that was taken and not received before all others, even if the channel is full. Does not
        wait."""

    def _get_parts(self, timeout: float | None) -> tuple[int, bytes | Loan]: ...
    def _put_frames(self, head: bytes, buffers: list[Buffer], timeout: float | None) -> None:
        """Put bytes and separate buffers, without pickling."""

    def _get_frames(self, timeout: float | None) -> tuple[bytes, list[Any]]:
        """Return what _put_frames() put: the bytes, and the buffers as loans or as bytes."""

    @staticmethod
    def _before_frame(head: bytes, size: int) -> tuple[int, bytes]:
        """Return the kind of message that _put_frames() puts, and what precedes a single buffer of that size in it."""

    def _put_loan(self, kind: int, loan: Loan) -> None: ...
    def _wait_readable(self, timeout: float | None) -> bool: ...
    def _fileno(self) -> int: ...
    def _holder(self) -> int:
        """Return the process that holds the channel's own lock at the moment, or 0."""

    def _size(self) -> int: ...
    def _taken(self) -> int:
        """Return the number of messages that were taken since the channel was made."""

    def _bytes(self) -> int:
        """Return the bytes of the run's memory that its messages take."""

    def _capacity(self) -> int: ...
    def _full(self) -> bool: ...
    def _task_done(self) -> bool: ...
    def _join(self, timeout: float | None) -> bool: ...
    def _refuse(self, refuse: bool) -> None:
        """Have puts raise DestroyedError, or no longer. The messages that are in the channel stay."""
    def _destroy(self) -> None: ...
    def _name(self) -> _Name: ...
    def _send(self) -> None: ...
    def _close(self) -> None: ...
    def _watch(self, on: bool, /) -> None: ...
    def _made_at(self, place: str) -> None: ...
    def _place(self) -> str: ...
    @property
    def _closed(self) -> bool: ...

class Lock:
    def __init__(self, recursive: bool | _Name = False) -> None: ...
    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Return whether the lock was acquired within `timeout` seconds. Warns if its holder had died."""

    def release(self) -> None:
        """Release the lock."""

    def __enter__(self) -> bool: ...
    def __exit__(self, *raised: object) -> None: ...
    def _take(self, timeout: float | None, /) -> bool:
        """Acquire the lock without the warning, for a caller that repairs the state that a dead holder has left."""

    def _is_mine(self) -> bool: ...
    def _count(self) -> int: ...
    def _recursive(self) -> bool: ...
    def _owner_pid(self) -> int: ...
    def _destroy(self) -> None: ...
    def _name(self) -> _Name: ...
    def _send(self) -> None: ...
    def _close(self) -> None: ...
    def _watch(self, on: bool, /) -> None: ...
    def _made_at(self, place: str) -> None: ...
    def _place(self) -> str: ...
    @property
    def _closed(self) -> bool: ...

class Semaphore:
    def __init__(self, value: int | _Name = 1, bound: int = 2147483647) -> None: ...
    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Return whether the counter was decremented within `timeout` seconds."""

    def release(self, n: int = 1) -> None:
        """Increment the counter by `n`. Raises ValueError beyond the bound."""

    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    def _value(self) -> int: ...
    def _destroy(self) -> None: ...
    def _name(self) -> _Name: ...
    def _send(self) -> None: ...
    def _close(self) -> None: ...
    def _watch(self, on: bool, /) -> None: ...
    def _made_at(self, place: str) -> None: ...
    def _place(self) -> str: ...
    @property
    def _closed(self) -> bool: ...

class Event:
    def __init__(self, name: _Name = ...) -> None: ...
    def set(self) -> None:
        """Set the flag and wake every waiter."""

    def clear(self) -> None:
        """Reset the flag."""

    def is_set(self) -> bool:
        """Return whether the flag is set."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the flag. Returns False after `timeout` seconds."""

    def _destroy(self) -> None: ...
    def _name(self) -> _Name: ...
    def _send(self) -> None: ...
    def _close(self) -> None: ...
    def _watch(self, on: bool, /) -> None: ...
    def _made_at(self, place: str) -> None: ...
    def _place(self) -> str: ...
    @property
    def _closed(self) -> bool: ...

class Condition:
    def __init__(self, name: _Name = ...) -> None: ...
    def _enter(self) -> int: ...
    def _sleep(self, waiter: int, timeout: float | None) -> bool: ...
    def _leave(self, waiter: int, /) -> bool: ...
    def _notify(self, n: int, /) -> int: ...
    def _destroy(self) -> None: ...
    def _name(self) -> _Name: ...
    def _send(self) -> None: ...
    def _close(self) -> None: ...
    def _watch(self, on: bool, /) -> None: ...
    def _made_at(self, place: str) -> None: ...
    def _place(self) -> str: ...
    @property
    def _closed(self) -> bool: ...

class Words:
    """64-bit words that processes set, add to and wait on. Supports the buffer protocol."""

    def __init__(self, count: int | _Name) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> int: ...
    def __setitem__(self, i: int, value: int, /) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def add(self, i: int, value: int, /) -> int:
        """Add to word `i` and return its value before."""

    def swap_if(self, i: int, expected: int, value: int, /) -> bool:
        """Set word `i` to `value` if it is `expected`. Returns whether it was."""

    def wait(self, i: int, value: int, timeout: float | None = None) -> int | None:
        """Wait until word `i` is no longer `value`. Returns what it is, None after `timeout` seconds."""

    def _destroy(self) -> None: ...
    def _name(self) -> _Name: ...
    def _send(self) -> None: ...
    def _close(self) -> None: ...
    def _watch(self, on: bool, /) -> None: ...
    def _made_at(self, place: str) -> None: ...
    def _place(self) -> str: ...
    @property
    def _closed(self) -> bool: ...

@final
class Loan:
    """The memory of a large message: one that was received, or one to be written and put."""

    def __init__(self, size: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class ShardFull(RuntimeError):
    """A change of a shard needs pages that are being read."""

class Reading:
    """One state of a shard, as long as it exists."""

    def abort(self) -> None: ...

class Scan:
    """The records of one state of a shard; each is valid until the next one is taken."""

    def __iter__(self) -> Scan: ...
    def __next__(self) -> Stored: ...
    def close(self) -> None: ...

class Shard:
    """A shard of a dictionary on this node. Keys are in their encoded form."""

    def __init__(
        self,
        words: Words,
        lock: Lock,
        folder: str,
        capacity: int,
        working_set: int,
        wait_for_keys: bool,
        persist_freq: int,
        name: str,
        where: str,
    ) -> None: ...
    timeout: float | None
    """Seconds to wait for other writers."""
    def read(self, key: bytes, checkpoint: int, take: Callable[[Stored], Any]) -> Any:
        """Return `take(record)` of a key's record, or MISSING."""

    def head(self, key: bytes, checkpoint: int) -> bytes | bool | None:
        """Return the head of a record that has no blobs; None if there is no such key, False if it has blobs."""

    def read_many(self, keys: list[bytes], checkpoint: int, take: Callable[[list[Stored | None]], _Result]) -> _Result:
        """Return `take(records)` of several keys in one state of the shard; None stands for a missing key."""

    def _view(self, key: bytes, checkpoint: int) -> tuple[Reading, Stored] | None: ...
    def pin(self, key: bytes, checkpoint: int) -> tuple[Reading | None, Stored] | None:
        """Return an object that keeps the blobs of a record unchanged as long as it exists (None without blobs), and
        the record; None if there is no such key."""

    def contains(self, key: bytes, checkpoint: int) -> bool: ...
    def has_had(self, key: bytes, checkpoint: int) -> bool:
        """Return whether the key exists, or existed in an earlier checkpoint of the working set and was not deleted
        since."""

    def scan(self, checkpoint: int) -> Scan:
        """Return all visible records of the present state."""

    def flagged_keys(self, checkpoint: int) -> list[tuple[bytes, int, int]]:
        """Return (key, flags, checkpoint in which it was put) of all keys."""

    def export(self, most: int) -> Iterator[tuple[list[bytes], list[memoryview]]]:
        """Return all entries, blobs before the records that refer to them, in batches of about `most` bytes. A batch is
        valid until the next one is taken."""

    def load(self, names: list[bytes], data: list[Any]) -> None:
        """Store entries of export(), in its order."""

    def count(self, checkpoint: int) -> int: ...
    def usage(self) -> dict[str, int]:
        """Return the bytes in all and in use, the number of entries, and of those that are records of keys."""

    def _behind(self, first: int, end: int) -> int: ...
    def put(self, key: bytes, record: Record, checkpoint: int, flags: int = 0) -> None:
        """Store a record. Raises DDictFullError if it does not fit; then the shard is unchanged."""

    def put_many(self, records: list[tuple[bytes, Record]], checkpoint: int, flags: int = 0) -> None:
        """Store several records, all or none. Raises DDictFullError if they do not fit."""

    def put_new(self, key: bytes, record: Record, checkpoint: int) -> bool:
        """Store a record unless the key exists (with wait_for_keys: in this checkpoint). Returns whether it was
        stored."""

    def pop(self, key: bytes, checkpoint: int, take: Callable[[Stored], Any] | None = None) -> Any:
        """Delete a key. Returns `take(record)`, or True without `take`; MISSING if there is no such key."""

    def _update(
        self, key: bytes, checkpoint: int, change: Callable[[Stored | None], tuple[Record, int, _Result]]
    ) -> _Result:
        """Store the record that `change(stored)` returns, with flags, and return the third that it returns."""

    def clear(self, checkpoint: int) -> None:
        """Delete every visible key; with wait_for_keys only those of this checkpoint, so that earlier persistent keys
        stay."""

    def advance(self, checkpoint: int) -> None:
        """Move to a checkpoint, as the first write in it does."""

    def begin_anew(self, checkpoint: int, since: int = 0) -> None:
        """Drop everything, and make `checkpoint` the newest one, which was restored at the time `since`."""

    def note_writer(self, client: bytes, checkpoint: int | None) -> None:
        """Register that a client writes in a checkpoint from now on; None unregisters it."""

    def writers(self) -> list[tuple[bytes, int]]:
        """Return (client, checkpoint) of all registered clients."""

    def freeze(self, on: bool) -> None:
        """Refuse writes from now on, or no longer."""

    def settle(self) -> None:
        """Wait for the current write."""

    def _collect(self) -> None:
        """Free the memory of versions that no reader can see any more. Raises ShardFull."""

    def _is_read(self) -> bool:
        """Return whether a process reads a state of the shard, whose pages cannot be overwritten."""

    def _copy_to(self, folder: str) -> None: ...
    def close(self) -> None:
        """Close the shard in this process once no value refers to its memory."""

class Pinned:
    """A read-only buffer that keeps `owner` alive as long as a view of it exists."""

    def __init__(self, memory: Buffer, owner: object) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def address_of(memory: Buffer) -> int:
    """Return the address of a buffer in this process."""

@final
class BytesInPieces:
    """A bytes object of `size` bytes that is filled with pieces in order."""

    def __init__(self, size: int) -> None: ...
    @property
    def missing(self) -> int:
        """The number of bytes that are missing."""

    def add(self, piece: Buffer) -> None:
        """Append the next piece. Raises ValueError for too many bytes."""

    def whole(self) -> bytes:
        """Return the object, once. Raises ValueError while bytes are missing."""

def create_arena(limit: int) -> int:
    """Make an arena for this process and return its descriptor."""

def open_arena(fd: int) -> None:
    """Map the arena of a descriptor."""

def close_arena() -> None:
    """Leave the run; handles of its objects cannot be used any more."""

def leave_arena() -> None:
    """Release all objects of this process, which is about to end."""

def leave_arena_at_exit() -> None:
    """Release all objects when the interpreter of this process has finished."""

class RunEnd:
    """Ends a run, in the process that owns it.

    `request` is sent to the agent's socket at `address` and asks it to end. The agent is awaited for `within` seconds,
    longer while the file `busy` exists, and the `folders` are removed.
    """

    def __init__(
        self, agent: int, address: str, request: bytes, busy: str, folders: list[str], within: float
    ) -> None: ...
    def now(self) -> None:
        """End the run, and return when its agent has ended."""

    def at_exit(self) -> None:
        """End the run when the interpreter of this process has finished."""

def forget_run_end() -> None:
    """Note that the run of this process was ended."""

def set_tracker(descriptor: int) -> None:
    """Set the descriptor of the tracker of shared memory, which is closed before this process ends its run; -1 for
    none."""

def has_arena() -> bool: ...
def arena_fd() -> int: ...
def arena_id() -> int: ...
def usage() -> _Usage:
    """Return the bytes of the limit, of memory committed by the kernel, and of blocks in use; and the number of those
    blocks."""

def trim() -> int:
    """Return the pages of free blocks to the kernel. Returns the number of bytes."""

def set_node(index: int, /) -> None:
    """Set the index of the node of this process."""

OPERATIONS: dict[str, int]
"""The operations on objects, by name."""

def desk() -> _Name:
    """Return the name of the channel in which processes put operations; with offset 0 if it is not open."""

def parts_of(obj: object) -> tuple[int, bytes | Loan]:
    """Convert an object to a message. Return the kind of message and its bytes."""

def object_of(kind: int, data: Buffer) -> Any:
    """Return the object of a message."""

def operate_on_shard(
    what: int,
    words: _Name,
    key: bytes,
    record: Record | None,
    checkpoint: int,
    flags: int,
    limit: float | None,
    others: list[_Name] = ...,
    flags_of_others: int = 0,
) -> tuple[int, Any]:
    """Have an operation performed on a shard of another node; a spread with `others`, too.

    Returns 1 if it was done, with the head and the blobs of a record or a number; 0 if the key is missing, with whether
    it may be with another manager; 2 if the wire does not do it, and 3 if there was no answer within `limit` seconds.
    """

def operate(
    what: int,
    name: _Name,
    arguments: tuple[int, ...] = (),
    payload: Buffer | None = None,
    timeout: float | None = 0.0,
    limit: float | None = None,
    ticket: int = 0,
    words: _Name = ...,
    as_bytes: bool = False,
    handle: object = None,
    kind: int = 0,
) -> tuple[int, Any]:
    """Perform an operation on an object, of whichever node.

    Returns (1, value) if it was done, (0, None) if it was not done within `timeout` seconds, (2, None) if the agents
    did not answer within `limit` seconds, and (3, None) if `handle` was closed meanwhile. Raises what the operation
    raises.
    """

def tell(what: int, kind: int, name: _Name) -> None:
    """Have an operation performed without waiting for it."""

class Line:
    """The operations on objects that an event loop waits for."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while there are answers."""

    def ask(self, what: int, name: _Name, arguments: tuple[int, ...], thread: int) -> int:
        """Begin an operation, and return its number."""

    def take(self) -> list[tuple[int, bool, Any, BaseException | None]]:
        """Return the answers that are there: number, whether it was cancelled, value, error."""

    def cancel(self, number: int) -> None:
        """Cancel an operation, of which an answer tells."""

    def close(self) -> None: ...

def seal_with_python() -> None:
    """Encrypt with Python's package cryptography from now on, as is done where there is no libcrypto."""

# What the wire reports: kind, node, number, size, name, flag, text, payload; see src/wire/events.hpp.
WireEvent = tuple[str, int, int, int, _Name, bool, Any, Any]

class Payload(Buffer):
    """Memory of a payload that the wire's thread keeps."""

class Wire:
    """Sends and receives data between this node and others, in a thread of its own.

    It also handles the agent's bell, in which processes note the objects that have changed.
    """

    def __init__(self, node: int) -> None: ...
    def close(self) -> None:
        """Close all connections, and end the thread."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while there are events."""

    def take(self) -> list[WireEvent]:
        """Return the events since the last call."""

    def add(
        self,
        fd: int,
        node: int,
        out_key: bytes,
        in_key: bytes,
        early: bytes,
        plain: bool,
        takes_beside: bool,
        sends_beside: bool,
        /,
    ) -> int:
        """Use a connection, which then belongs to the wire. Returns its number.

        `early` was already received over it. If it is `plain`, large payloads are not encrypted. They come, or go,
        `beside` it if both agents have the same fabric.
        """

    def send(self, node: int, message: bytes, payload: Buffer | None, kept: bool) -> int:
        """Send a message, and return the epoch of the session. A `kept` one is lost only with the node."""

    def end_epoch(self, node: int, reason: str, hopeless: bool, /) -> None:
        """Begin a new epoch of a session; `hopeless`: the node cannot be reached."""

    def forget(self, node: int, reason: str, text: str, /) -> None:
        """End the session with a node that is lost. Operations on its objects fail with that text."""

    def set_nodes(self, count: int, /) -> None:
        """Set the number of nodes of the run."""

    def open_desk(self) -> None:
        """Open the channel in which processes of this node put operations."""

    def ask(self, what: int, name: _Name, arguments: tuple[int, ...], payload: Buffer | None, waits: bool) -> int:
        """Have an operation performed for the agent. An event Outcome, Got or Failed with this number tells the end."""

    def fail(self, node: int, before_epoch: int, text: str, /) -> None:
        """Let operations fail that were sent to a node in earlier epochs."""

    def serve_shard(
        self,
        words: _Name,
        lock: _Name,
        folder: str,
        capacity: int,
        working_set: int,
        wait_for_keys: bool,
        persist_freq: int,
        name: str,
        where: str,
    ) -> None:
        """Perform operations of other nodes on a shard, until forget_shard(). The caller keeps its words and lock."""

    def forget_shard(self, words: _Name, /) -> None: ...
    def announce(self, node: int, name: _Name, count: int, /) -> None:
        """Keep an object of this node alive until `count` processes of another node have attached to it."""

    def parked(self) -> list[tuple[int, int, str, int, float, int]]:
        """Return what waits for objects of this node: node, process, operation, offset of the object, since how many
        seconds, and the process that holds a lock."""

    def pending(self) -> list[tuple[int, int, str, float]]:
        """Return what processes of this node wait for: process, node of the object, operation, since how many
        seconds."""

    def abort(self, connection: int, reason: str, /) -> None: ...
    def connections(self) -> list[int]:
        """Return the numbers of all connections."""

    def finish_beside(self, connection: int, /) -> None:
        """Note that the payload of the last event TakeBeside has arrived."""

    def state(self, node: int, /) -> tuple[bool, bool, bool, bool]:
        """Return whether there is a connection to a node, whether there was one in this epoch, whether frames are not
        acknowledged or an operation waits on either side, and whether kept frames are not acknowledged."""

    def open_outbox(self, pid: int, name: _Name, droppable: bool, /) -> _Name:
        """Return the outbox that leads to a channel of another node, for a handle of that process."""

    def lend(self, name: _Name, kind: int, start: bytes, buffer: Buffer, /) -> None:
        """Send a message of these bytes, after the pending ones of the outbox that leads to the channel."""

    def why_gone(self, outbox: _Name, /) -> tuple[int, str, str, str]:
        """Return why messages in an outbox were lost: its node, class and text of an error, or why a connection
        broke."""

    def why_lost(self, name: _Name, /) -> tuple[str, str]:
        """Return class and text of the error by which messages to a channel of this node were lost."""

    def open_proxy(self, pid: int, name: _Name, /) -> _Name:
        """Return the proxy of a channel of another node; with offset 0 if an event will tell when it is known."""

    def dropped(self, pid: int, name: _Name, /) -> None:
        """Note that a process has dropped a handle that used that outbox or proxy."""

    def left(self, pid: int, /) -> bool:
        """Note that a process has ended. Returns whether messages of it are under way; then an event tells when they
        have arrived."""

    def leave(self, pid: int, name: _Name, /) -> None:
        """Note that a process has no handle of a channel of another node any more."""

    def look_at_all(self) -> None:
        """Look at all objects, since a process that has ended may not have told what it changed."""

    def trace(self, on: bool, /) -> None: ...

def thread_id() -> int: ...
def act_as(guest: int, thread: int, /) -> int:
    """Act as a guest, a thread of a process of another node. Returns the id as which it acted before."""

def myself() -> int: ...
def next_number() -> int: ...
def set_serializer(serializer: Callable[[Any], tuple[bytes, Sequence[Any] | None]]) -> None: ...
def set_bell_folder(path: str, /) -> None: ...
def reserve_slot() -> int:
    """Reserve a slot for a process to be forked."""

def fill_slot(owner: int, pid: int, /) -> None: ...
def take_slot(owner: int, /) -> None:
    """Make that slot this process's, unless it is that of an ancestor."""

def exists(offset: int, generation: int, /) -> bool: ...
def reap(pid: int, /) -> bool:
    """Free what a dead process left behind."""

def reap_dead() -> int:
    """Free what all dead processes left behind, and return their number."""

def processes() -> list[tuple[int, int]]:
    """Return (pid, number of blocks it owns) of every process."""

class _Wait(TypedDict):
    """What a thread of a process waits for. `kind` is empty if the object does not exist any more.

    `attached` are the processes that have a handle of the object, one list for all that wait for it.
    """

    pid: int
    thread: int
    purpose: Literal["get", "put", "read", "join", "acquire", "wait", ""]
    kind: Literal["Channel", "Lock", "Semaphore", "Event", "Condition", "Words", ""]
    offset: int
    place: str  # where the object was made, as train.py:12; empty if that is unknown
    seconds: float
    attached: list[int]
    size: NotRequired[int]  # of a channel, like capacity
    capacity: NotRequired[int]
    holder: NotRequired[int]  # of a lock; 0: none
    value: NotRequired[int]  # of a semaphore
    is_set: NotRequired[bool]  # an event

def trace(on: bool) -> None:
    """Start or stop recording tasks, and waits of 10 us and more when they end."""

def tracing() -> bool:
    """Whether waits and tasks are recorded."""

def begin_task(which: int) -> int:
    """Record that this thread begins a task, identified by an even number below 2**56. Returns the time, in
    nanoseconds of the monotonic clock."""

def end_task(which: int, start: int) -> None:
    """Record that this thread has ended the task that it began at `start`. `which` is its number, or the next, odd
    one if it failed. The end of a process is recorded as the failure of its tasks."""

def running_tasks() -> list[tuple[int, int, str, str, int, int, int]]:
    """Return the tasks that processes run now, as take_spans() does, with 0 for their end."""

def take_spans(next: int) -> tuple[list[tuple[int, int, str, str, int, int, int]], int, int]:
    """Return the spans recorded from the number `next` on, the number for the next call, and how many were lost.

    Each span is: process id, thread, purpose, kind of object, its offset or the number of the task, start and end in
    nanoseconds of the monotonic clock. The newest 16,384 are kept; spans that were overwritten or never completed are
    lost.
    """

def waits() -> list[_Wait]:
    """Return what every process of the run waits for, as far as recorded. Works outside of the run, too."""

def place_of(offset: int) -> str:
    """Return where the object at that offset was made, as train.py:12; empty if that is unknown."""

class _Queue(TypedDict):
    """The state of a user's queue: messages in it and those taken in all, the bytes of shared memory that they take,
    and the numbers of threads that wait to get and to put. For the tasks of a pool also: handles, running tasks,
    results produced."""

    offset: int
    number: int
    place: str
    maker: int
    size: int
    taken: int
    bytes: int
    getting: int
    putting: int
    attached: NotRequired[int]
    running: NotRequired[int]
    done: NotRequired[int]

def find_queues(first: int, most: int) -> tuple[list[int], int]:
    """Return the offsets of users' queues and pools among `most` blocks from index `first` on, and the next index.

    That is 0 after the last block. This function and queues() only read, and may be called in any thread.
    """

def queues(offsets: Sequence[int]) -> list[_Queue]:
    """Return the states of those queues that still exist."""

def inquire(seconds: float) -> None:
    """Make every waiting process call its on_inquiry() callback once a second, for that many seconds."""

def asked() -> bool:
    """Return whether stacks of waiting processes are requested at the moment."""

def on_inquiry(callback: Callable[[], None]) -> None:
    """Set the function that this process calls when stacks of waiting processes are requested."""

def set_keeper() -> None:
    """Make this process the keeper of the run: waits end when it ends."""

def signal_descriptor(read: Sequence[int], ignored: Sequence[int]) -> int:
    """Block these signals, and return a descriptor from which the first ones are read."""

def plain_fork() -> int: ...
def pack(value: object) -> bytes:
    """Encode None, whole numbers, text, bytes, and lists, tuples and dicts of these, by MessagePack. Raises
    UnicodeEncodeError for text that is not UTF-8."""

class ForkServer:
    """The zygote's loop between two forks: takes start requests, forks those it may, reaps children, and notifies the
    agent.

    Descriptors: `requests` come as datagrams, events are sent to the `agent` in packets, `signals` reports SIGCHLD and
    SIGTERM.
    """

    def __init__(self, requests: int, agent: int, signals: int) -> None: ...
    def set_output(self, label: bool, forwards: bool) -> None:
        """Set whether lines of processes get labels, and whether output is forwarded to a front end, as on several
        nodes."""

    def next(self) -> Literal["agent", "request", "refused", "child", "idle", "end"]:
        """Return the next thing that the caller must do.

        "agent": read what the agent sent; "request": start the process of request(), then call started() or failed();
        "refused": log why() a request was refused; "child": run the process of request(), in a child; "idle": once
        after await_idle(), if nothing comes for a while; "end": end.
        """

    def await_idle(self) -> None: ...
    def request(self) -> bytes:
        """Return the request as it was received."""

    def fields(self) -> tuple[Any, ...]:
        """Return what starting the request's process takes: the fields of `Asked` in agent/processes/zygote.py."""

    def descriptors(self) -> list[int]:
        """Return the descriptors 0, 1, 2 … of the request's process; the server closes them itself."""

    def slot(self) -> int:
        """Return the slot of the request's process in the arena."""

    def why(self) -> str: ...
    def started(self, pid: int, forked: bool) -> None:
        """Report a process to the agent. A forked process takes its slot in the arena itself."""

    def failed(self, error: int, text: str) -> None: ...
    def fork_alike(self) -> None:
        """Fork for later requests of the same main program and surroundings without returning from next()."""

    def synchronise(self) -> None:
        """Send the agent all events so far, and a mark that these are all."""

    def reap(self) -> None: ...
    def disown(self) -> None:
        """Ignore the present children that were not started for a request."""

    def running(self) -> list[int]: ...
    def enter_child(
        self,
    ) -> tuple[
        int, str, int, int, dict[str, str | None], str, bytes | tuple[_Name, int], list[str], list[int], list[int]
    ]:
        """Set up a new child as its request asks for. Returns the arguments of child.run_forked()."""

def anonymous_memory(label: str, /) -> int:
    """Return a descriptor of memory without a name."""

def open_process(pid: int, /) -> int:
    """Return a descriptor of a process, readable when it ends. Raises ProcessLookupError if there is none."""

def signal_process(descriptor: int, pid: int, number: int, /) -> None:
    """Send a signal to the process of a descriptor. Raises ProcessLookupError if it has ended."""

def current_umask() -> int:
    """Return this process's umask, without changing it."""

def current_limits() -> list[int]:
    """Return the soft and hard resource limits of this process by number, then its niceness."""

def current_signals() -> list[int]:
    """Return masks of signals of this thread, signal n being bit n - 1: those ignored, those blocked, and those of
    SIGINT, SIGPIPE and SIGXFSZ that have the default action. Empty if they are those with which an interpreter
    starts."""

def prctl(option: int, value: int, /) -> None: ...
def start_executable(
    executable: str,
    arguments: Sequence[str],
    environment: Sequence[str],
    descriptors: Sequence[int],
    folder: str = "",
    cpus: Sequence[int] = (),
    limits: Sequence[int] = (),
    signals: Sequence[int] = (),
    death_signal: int = 0,
    reaper: bool = False,
    detached: bool = False,
) -> int:
    """Start an executable and return its process id. Raises OSError."""
