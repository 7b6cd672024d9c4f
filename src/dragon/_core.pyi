"""The node's shared memory: arena, channels and synchronisation. Mechanism only."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, NotRequired, TypedDict, final

from typing_extensions import Buffer

# How a shared object is named: offset, generation, role.
_Name = tuple[int, int, int]

class DestroyedError(ValueError):
    """The object is gone: it was destroyed, or its run has ended."""

class LockedError(RuntimeError):
    """A process that does not go on, because it was stopped or lost its processor, holds a lock that is needed."""

class _Usage(TypedDict):
    limit: int
    committed: int
    in_use: int
    blocks: int

class Channel:
    """A first-in first-out queue of objects in shared memory.

    `capacity` messages at most, 0: as many as there is memory, and no more once they take so many `mebibytes`. `role`
    is 1 for the reader of a pipe, 2 for its writer. `maker`, a puid, makes it a user's queue, which is measured; or a
    pool's tasks, with the channel of its `results` and the words in which its workers say what they are `doing`.
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

    def put_nowait(self, obj: Any, /) -> None:
        """Put an object, or raise queue.Full."""

    def get(self, block: bool = True, timeout: float | None = None, stream_channel: Any = None) -> Any:
        """Take the oldest object. Raises queue.Empty after `timeout` seconds."""

    def get_nowait(self) -> Any:
        """Take the oldest object, or raise queue.Empty."""

    def _put_bytes(self, buffer: Buffer, start: int, size: int, /) -> None: ...
    def _get_bytes(self, timeout: float | None) -> bytes: ...
    def _put_task(self, task: Any, ticket: int) -> None:
        """Put an object with its ticket."""

    def _get_task(self, doing: Words, index: int) -> Any:
        """Wait for the oldest object and take it. Word `index` of `doing` is 0 meanwhile, and its ticket from before it
        is taken: where its taker dies, at whatever point, it is known what it had."""

    def _put_parts(self, kind: int, buffer: Buffer, timeout: float | None, ticket: int = 0) -> None: ...
    def _get_parts(self, timeout: float | None) -> tuple[int, bytes | Loan]: ...
    def _get_task_parts(self, doing: Words, index: int) -> tuple[int, bytes | Loan]: ...
    def _put_frames(self, head: bytes, buffers: list[Buffer], timeout: float | None) -> None:
        """Put bytes, and buffers beside them, with nothing pickled."""

    def _get_frames(self, timeout: float | None) -> tuple[bytes, list[Any]]:
        """What _put_frames() put: the bytes, and the buffers as memory on loan or as bytes."""

    @staticmethod
    def _before_frame(head: bytes, size: int) -> tuple[int, bytes]:
        """The kind of message that _put_frames() puts, and what precedes a single buffer of that size in it."""

    def _take_parcel(self, most: int) -> tuple[bytes, int, Loan | None]: ...
    def _put_parcel(self, buffer: Buffer, start: int) -> int: ...
    def _put_loan(self, kind: int, loan: Loan) -> None: ...
    def _wait_readable(self, timeout: float | None) -> bool: ...
    def _fileno(self) -> int: ...
    def _ring_agent(self) -> None:
        """From now on the agent's bell rings when there is something in it again. Only the agent reads it."""

    def _holder(self) -> int:
        """The process that holds the channel's own lock at this moment, or 0."""

    def _size(self) -> int: ...
    def _bytes(self) -> int:
        """Of the run's memory, in which its messages lie."""

    def _capacity(self) -> int: ...
    def _full(self) -> bool: ...
    def _task_done(self) -> bool: ...
    def _join(self, timeout: float | None) -> bool: ...
    def _destroy(self) -> None: ...
    def _name(self) -> _Name: ...
    def _send(self) -> None: ...
    def _close(self) -> None: ...
    def _watch(self, on: bool, /) -> None: ...
    @property
    def _closed(self) -> bool: ...

class Lock:
    def __init__(self, recursive: bool | _Name = False) -> None: ...
    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Whether it was acquired within `timeout` seconds. Warns if its holder had died."""

    def release(self) -> None:
        """Release the lock."""

    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    def _take(self, timeout: float | None, /) -> bool:
        """acquire() without the warning, by one who repairs what a holder that died has left."""

    def _is_mine(self) -> bool: ...
    def _count(self) -> int: ...
    def _recursive(self) -> bool: ...
    def _owner_pid(self) -> int: ...
    def _destroy(self) -> None: ...
    def _name(self) -> _Name: ...
    def _send(self) -> None: ...
    def _close(self) -> None: ...
    def _watch(self, on: bool, /) -> None: ...
    @property
    def _closed(self) -> bool: ...

class Semaphore:
    def __init__(self, value: int | _Name = 1, bound: int = 2147483647) -> None: ...
    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Whether it was acquired within `timeout` seconds."""

    def release(self, n: int = 1) -> None:
        """Raises ValueError beyond the bound."""

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
    @property
    def _closed(self) -> bool: ...

class Event:
    def __init__(self, name: _Name = ...) -> None: ...
    def set(self) -> None:
        """Set the flag and wake every waiter."""

    def clear(self) -> None:
        """Reset the flag."""

    def is_set(self) -> bool:
        """Whether the flag is set."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the flag; False after `timeout` seconds."""

    def _destroy(self) -> None: ...
    def _name(self) -> _Name: ...
    def _send(self) -> None: ...
    def _close(self) -> None: ...
    def _watch(self, on: bool, /) -> None: ...
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
    @property
    def _closed(self) -> bool: ...

class Words:
    """64-bit words that processes set, add to and wait on. A buffer of their bytes, too."""

    def __init__(self, count: int | _Name) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> int: ...
    def __setitem__(self, i: int, value: int, /) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def add(self, i: int, value: int, /) -> int:
        """The value before."""

    def swap_if(self, i: int, expected: int, value: int, /) -> bool:
        """Whether the word was `expected`, and is `value` now."""

    def wait(self, i: int, value: int, timeout: float | None = None) -> bool:
        """Wait until word `i` is no longer `value`; False after `timeout` seconds."""

    def _destroy(self) -> None: ...
    def _name(self) -> _Name: ...
    def _send(self) -> None: ...
    def _close(self) -> None: ...
    def _watch(self, on: bool, /) -> None: ...
    @property
    def _closed(self) -> bool: ...

@final
class Loan:
    """The memory of a large message: one that was received, or one to be written and put."""

    def __init__(self, size: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Pinned:
    """A buffer that may only be read, and lives as long as somebody looks into it."""

    def __init__(self, memory: Buffer, owner: object) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def address_of(memory: Buffer) -> int:
    """Where a buffer begins in this process's memory."""

def memory_at(address: int, size: int) -> memoryview:
    """Memory that may only be read, and that somebody else sees to it stays there."""

@final
class BytesInPieces:
    """A bytes object of so many bytes, whose pieces come one by one."""

    def __init__(self, size: int) -> None: ...
    @property
    def missing(self) -> int:
        """How many bytes are still to come."""

    def add(self, piece: Buffer) -> None:
        """The next bytes. Raises ValueError for too many."""

    def whole(self) -> bytes:
        """The object, once. Raises ValueError while bytes are missing."""

def create_arena(limit: int) -> int:
    """Make an arena for this process; returns its descriptor."""

def open_arena(fd: int) -> None:
    """Map the arena behind a descriptor."""

def close_arena() -> None:
    """Leave the run; handles of its objects are dead from now on."""

def leave_arena() -> None:
    """This process ends: drop what it is attached to."""

def leave_arena_at_exit() -> None:
    """The same when the interpreter of this process has finished."""

class RunEnd:
    """How a run is ended by the process that owns it.

    `request`, sent to the agent's socket at `address`, asks it to end. It is waited for, longer while the file `busy`
    exists, and the `folders` are removed.
    """

    def __init__(self, agent: int, address: str, request: bytes, busy: str, folders: list[str]) -> None: ...
    def now(self) -> None:
        """End the run, and return when its agent has ended."""

    def at_exit(self) -> None:
        """End the run when the interpreter of this process has finished."""

def forget_run_end() -> None:
    """The run of this process has been ended."""

def set_tracker(descriptor: int) -> None:
    """What leads to the tracker of shared memory, to be closed before this process ends its run."""

def has_arena() -> bool: ...
def arena_fd() -> int: ...
def arena_id() -> int: ...
def usage() -> _Usage:
    """Bytes: the limit, reserved in the kernel, in blocks in use; and the number of those blocks."""

def trim() -> int:
    """Give the pages of free blocks back; returns the bytes."""

def set_node(index: int, /) -> None:
    """The index of the node this process is on."""

def agent_bell() -> int:
    """A descriptor from which the offsets of watched objects are read that changed, 8 bytes each."""

def act_as(guest: int, thread: int, /) -> int:
    """Act as a guest, a thread of a process of another node; returns whom this process was acting as."""

def myself() -> int: ...
def guest_attach(guest: int, offset: int, generation: int, role: int, /) -> None: ...
def guest_release(guest: int, offset: int, generation: int, role: int, /) -> None: ...
def guest_send(guest: int, offset: int, generation: int, role: int, /) -> None: ...
def guest_left(guest: int, /) -> None: ...
def next_number() -> int: ...
def set_serializer(serializer: Callable[[Any], tuple[bytes, Sequence[Any] | None]]) -> None: ...
def set_bell_folder(path: str, /) -> None: ...
def reserve_slot() -> int:
    """A place for a process to be forked."""

def fill_slot(owner: int, pid: int, /) -> None: ...
def take_slot(owner: int, /) -> None:
    """This process is the one of that place, unless another process above it is."""

def exists(offset: int, generation: int, /) -> bool: ...
def reap(pid: int, /) -> bool:
    """Free what a dead process left."""

def reap_dead() -> int:
    """Free what all dead processes left; returns their number."""

def processes() -> list[tuple[int, int]]:
    """(pid, blocks it owns) of every process."""

class _Wait(TypedDict):
    """What a thread of a process waits for. `kind` is empty where the object is gone.

    `attached` are the processes that have a handle of the object, one list for all that wait for it.
    """

    pid: int
    thread: int
    purpose: Literal["get", "put", "read", "join", "acquire", "wait", ""]
    kind: Literal["Channel", "Lock", "Semaphore", "Event", "Condition", "Words", ""]
    offset: int
    seconds: float
    attached: list[int]
    size: NotRequired[int]  # of a channel, like capacity
    capacity: NotRequired[int]
    holder: NotRequired[int]  # of a lock; 0: nobody
    value: NotRequired[int]  # of a semaphore
    is_set: NotRequired[bool]  # an event

def trace(on: bool) -> None:
    """From now on note waits of 10 us and more when they are over, and what note_task() is called with; or no more."""

def begin_span() -> int:
    """The time now, in nanoseconds of the monotonic clock, while the run is traced; 0 otherwise."""

def note_task(which: int, start: int) -> None:
    """Note a task, known by that number (below 2**56), that this thread has done since then."""

def take_spans(next: int) -> tuple[list[tuple[int, int, str, str, int, int, int]], int, int]:
    """What was noted from the number `next` on, the number of the next call, and how many came too fast to be seen.

    Each is: process id, thread, purpose, kind of object, its offset or the number of the task, start and end in
    nanoseconds of the monotonic clock. The newest 16,384 are kept.
    """

def waits() -> list[_Wait]:
    """What every process of the run waits for, as far as it was noted. Also for a process that is none of the run's."""

class _Queue(TypedDict):
    """A user's queue: messages in it and those taken ever, the bytes of shared memory in which they lie, and how many
    wait to get and to put. Of a pool, whose tasks it holds: the handles of it, tasks that run, results that came."""

    offset: int
    number: int
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
    """The offsets of users' queues and pools among `most` blocks from the one with the index `first` on, and the index
    to go on with, 0 after the last. This and queues() only look, and may be called in any thread."""

def queues(offsets: Sequence[int]) -> list[_Queue]:
    """Those that are there still."""

def inquire(seconds: float) -> None:
    """For that long, have every process that waits call what it gave on_inquiry(), once a second."""

def asked() -> bool:
    """Whether somebody asks what this process waits for."""

def on_inquiry(callback: Callable[[], None]) -> None:
    """What this process is to do when somebody asks what it waits for."""

def set_keeper() -> None:
    """This process keeps the run; waits end with it."""

def signal_descriptor(read: Sequence[int], ignored: Sequence[int]) -> int:
    """Block these signals; a descriptor from which the first ones are read."""

def plain_fork() -> int: ...

class ForkServer:
    """What the zygote does between two forks: takes start requests, forks for those it may, reaps, tells the agent.

    Descriptors: `requests` come as datagrams, events go to the `agent` in packets, `signals` tells of SIGCHLD and
    SIGTERM.
    """

    def __init__(self, requests: int, agent: int, signals: int) -> None: ...
    def set_output(self, label: bool, forwards: bool) -> None:
        """Labels go before the lines of processes; and where the run has several nodes, output to its front end."""

    def next(self) -> Literal["agent", "request", "refused", "child", "end"]:
        """What is to be done that the server does not do itself: read what the agent said; start the process of
        request(), then call started() or failed(); note why() a request could not be taken; be the process of
        request(), in a child; end."""

    def request(self) -> bytes:
        """The request as it came."""

    def descriptors(self) -> list[int]:
        """What are to be the descriptors 0, 1, 2 … of the request's process; the server closes them itself."""

    def slot(self) -> int:
        """The place of the request's process in the arena."""

    def why(self) -> str: ...
    def started(self, pid: int, forked: bool) -> None:
        """Tell of a process. One that was forked takes its place in the arena by itself."""

    def failed(self, error: int, text: str) -> None: ...
    def fork_alike(self) -> None:
        """Requests of the same main program and surroundings are forked for from now on without asking."""

    def synchronise(self) -> None:
        """Tell the agent all that has happened so far, and that this is all."""

    def reap(self) -> None: ...
    def disown(self) -> None:
        """The children that are there now and were not started for a request are nobody's leftovers."""

    def running(self) -> list[int]: ...
    def enter_child(
        self,
    ) -> tuple[
        int, str, int, int, dict[str, str | None], str, bytes | tuple[_Name, int], list[str], list[int], list[int]
    ]:
        """Be set up in a new child as its request asks for; what it then has to do, for child.run_forked()."""

def anonymous_memory(label: str, /) -> int:
    """A descriptor of memory without a name."""

def open_process(pid: int, /) -> int:
    """A descriptor of a process, readable when that ends. Raises ProcessLookupError where there is none."""

def signal_process(descriptor: int, pid: int, number: int, /) -> None:
    """Send a signal to the process that a descriptor was opened for. Raises ProcessLookupError."""

def current_umask() -> int:
    """This process's umask, which stays as it is."""

def current_limits() -> list[int]:
    """Soft and hard resource limits of this process by number, then its niceness."""

def current_signals() -> list[int]:
    """Sets of signals of this thread, signal n being bit n - 1: ignored, blocked, and those of SIGINT, SIGPIPE and
    SIGXFSZ that are left to the system. Empty where they are those that an interpreter begins with."""

def prctl(option: int, value: int, /) -> None: ...
def start_executable(
    executable: str,
    arguments: Sequence[str],
    environment: Sequence[str],
    folder: str,
    descriptors: Sequence[int],
    cpus: Sequence[int],
    limits: Sequence[int],
    signals: Sequence[int],
    death_signal: int,
    reaper: bool,
    detached: bool,
) -> int:
    """Start an executable; returns its process id or raises OSError."""
