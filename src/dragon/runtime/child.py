"""The steps of a new process between its fork and the user's function."""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dragon import _core, cpython
from dragon.infrastructure.errors import DragonError, RunEndedError
from dragon.infrastructure.system import restored
from dragon.runtime import serialization
from dragon.runtime.by_value import imported_main
from dragon.runtime.copies import viewed, write_back
from dragon.runtime.handle import Words
from dragon.runtime.interpreter import take_over
from dragon.runtime.run import Identity, become, identity

if TYPE_CHECKING:
    from dragon.infrastructure.start_request import Name


# Whether Python took stdout for a terminal when this interpreter started.
_TERMINAL = bool(getattr(sys.stdout, "line_buffering", False))

# The function that a process runs first, with the payload of the request and the descriptors. Returns the exit code.
Entry = Callable[[Any, list[int]], int]
_entries: dict[str, Entry] = {}


def find_entry(name: str) -> Entry:
    """Return an entry function of the runtime by its name, "module:function"."""
    entry = _entries.get(name)
    if entry is None:
        module, _, function = name.partition(":")
        if not module.startswith("dragon."):
            raise ValueError(f"{name} is no entry of the runtime")
        entry = _entries[name] = getattr(importlib.import_module(module), function)
    return entry


def apply_environment(changes: dict[str, str | None]) -> None:
    """Change os.environ; None removes a variable. An empty name removes all other variables first."""
    if "" in changes:
        os.environ.clear()
    for sent, value in changes.items():
        name = restored(sent)
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = restored(value)
    if "TZ" in changes:
        time.tzset()


def apply_signals(signals: list[int]) -> None:
    """Ignore the signals of the first mask, and reset those of the last one; see _core.current_signals()."""
    for handler, numbers in ((signal.SIG_IGN, signals[0]), (signal.SIG_DFL, signals[2])):
        for number in range(1, signal.NSIG):
            if numbers >> number - 1 & 1:
                signal.signal(number, handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which this interpreter ignores
        if not (signals[0] | signals[2]) >> number - 1 & 1:
            signal.signal(number, signal.SIG_DFL)


def import_main(main: tuple[str, str]) -> None:
    """Import the main program as `__mp_main__`, as multiprocessing's spawn does. Raises what the program raises."""
    # The creator's start method is set already; a program may set it once more outside of its main block.
    with cpython.making(), cpython.without_start_method():
        cpython.import_main(main[0], restored(main[1]))
        imported_main(sys.modules["__main__"])


def run_forked(
    puid: int,
    name: str,
    parent: int,
    group: int,
    environment: dict[str, str | None],
    entry: str,
    payload: bytes | tuple[Name, int],
    variables: list[str],
    signals: list[int],
    descriptors: list[int],
) -> None:
    """Become the requested process, right after the fork, and run its entry; see run_entry(). Never returns."""
    code = 1
    try:
        become(Identity(puid=puid, name=name, parent=parent, group=group))
        if environment:
            apply_environment(environment)
        if signals:
            apply_signals(signals)
        code = run_entry(entry, payload, variables, descriptors)
    except BaseException as error:
        report(error)
    finally:
        _core.leave_arena()
        os._exit(code)


def run_entry(entry: str, payload: bytes | tuple[Name, int], variables: list[str], descriptors: list[int]) -> int:
    """Call an entry of the runtime with its payload, which may be in the arena. Returns the exit code."""
    if os.isatty(1) != _TERMINAL:  # output to a terminal is line-buffered
        sys.stdout.reconfigure(line_buffering=not _TERMINAL)  # type: ignore[union-attr]
    for variable, descriptor in zip(variables, descriptors, strict=False):
        os.environ[variable] = str(descriptor)
    try:
        if not isinstance(payload, bytes):
            name, size = payload
            payload = memoryview(Words._attached(name)).cast("B")[:size]  # type: ignore[assignment]
        return (_entries.get(entry) or find_entry(entry))(payload, descriptors)
    finally:
        if viewed:
            write_back()


def write_whole_lines() -> None:
    """Make unbuffered output line-buffered, in the zygote for all its children: Python writes the end of a line apart
    otherwise, and lines of several processes would mix."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "write_through", False):
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]


def report(error: BaseException) -> None:
    """Report why the user's function was not called. An interrupt before its start needs no traceback."""
    if isinstance(error, KeyboardInterrupt):
        end_as_interrupted()
    write_traceback(error)


def end_as_interrupted() -> None:
    """End this process by SIGINT, as every Python program does that was interrupted."""
    _core.leave_arena()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def write_traceback(error: BaseException) -> None:
    """Write the traceback of an error to stderr in one piece."""
    print("".join(traceback.format_exception(error)), end="", file=sys.stderr)


def run_exit_handlers(code: int) -> bool:
    """Join threads, call the exit handlers of multiprocessing and the user, and flush streams. Returns False if one
    raised. A rank of MPI that fails, as `code` says, does not wait for the others in MPI_Finalize: its end ends the
    job."""
    try:
        cpython.end()
        mpi = sys.modules.get("mpi4py.MPI")
        if code == 0 and mpi is not None and mpi.Is_initialized():
            # mpi4py and MPICH do this in C at the exit of a process, which a forked process does not reach.
            if not mpi.Is_finalized():
                mpi.Finalize()
            if "PMI_FD" in os.environ:
                os.write(int(os.environ["PMI_FD"]), b"cmd=finalize\n")
    except BaseException as error:
        write_traceback(error)
        return False
    finally:
        cpython.flush_streams()
    return True


def main_fresh(request_fd: int) -> None:
    """The entry of a fresh interpreter, which is started if a fork of the zygote would not be safe. Never returns."""
    from dragon.infrastructure.messages import decode_spawn
    from dragon.runtime.run import this_run

    with open(request_fd, "rb") as file:
        request = decode_spawn(file.read())
    write_whole_lines()
    this_run()
    extra = [request_fd + 1 + i for i in range(int(os.environ.pop("DRAGON_DESCRIPTORS", "0")))]
    code = 1
    try:
        if request.signals:
            apply_signals(request.signals)
        take_over(request.surroundings)
        if request.main is not None:
            import_main(request.main)
        payload = request.payload if request.payload_in is None else (request.payload_in, request.payload_size)
        code = run_entry(request.entry, payload, request.descriptor_variables, extra)
    except BaseException as error:
        report(error)
    finally:
        _core.leave_arena()
        os._exit(code)


_INTERRUPTED = -signal.SIGINT
_MOST = 1 << 63  # one more than the largest value of C's long


def run(payload: bytes | memoryview, descriptors: list[int]) -> int:
    """Call the function that serialization.dumps_call() wrote. Returns the exit code: 0, that of sys.exit(), or 1 after
    an exception, whose traceback is written.

    A process that is interrupted ends by SIGINT.
    """
    code = _call(payload)
    in_order = run_exit_handlers(code)
    if code == _INTERRUPTED:
        end_as_interrupted()
    return code if in_order else code or 1


def _call(payload: bytes | memoryview) -> int:
    cpython.forget_finalizers()
    begun = False
    try:
        target, args, kwargs = serialization.loads(payload)
        begun = not getattr(target, "is_quiet", False)
        target(*args, **kwargs)
    except SystemExit as end:
        return _exit_code(end.code)
    except KeyboardInterrupt as error:
        if begun and not _is_stopped():
            write_traceback(error)
        return _INTERRUPTED
    except BaseException as error:
        if not isinstance(error, RunEndedError):  # which is reported where the run was started
            write_traceback(error)
        return 1
    return 0


def _is_stopped() -> bool:
    """Return whether the interrupt is the first step of stopping this process's group, and therefore not an error."""
    from dragon.runtime.agent_client import ask  # few processes need these
    from dragon.runtime.protocol.groups import IsGroupEnding

    group = identity().group
    try:
        return bool(group) and ask(IsGroupEnding(group))
    except DragonError:
        return True  # the run ends, or the node that supervises the group is lost


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -_MOST <= code < _MOST else 0xFF  # as a Python program does
    print(code, file=sys.stderr)
    return 1


class InheritedDescriptor:
    """A file descriptor that a new process inherits, with the interface of reduction.DupFd()."""

    def __init__(self, index: int) -> None:
        self.index = index

    def detach(self) -> int:
        """Return the descriptor in the new process."""
        return os.dup(_inherited[self.index])


_HONOURS_ATEXIT = sys.version_info >= (3, 13)  # multiprocessing calls atexit handlers from 3.13 on

_TRACKER = cpython.resource_tracker()

_inherited: list[int] = []

# Precedes the process object: the parent's pid, whether the parent is on the same node, and the parent's descriptor of
# its resource tracker with the inode of that pipe. The tracker must be set before objects are made that it tracks.
HEADER = struct.Struct("<i?iQ")


def _tracker_of(process: int, descriptor: int, inode: int) -> int | None:
    """Return a descriptor of another node's tracker if both are simulated on one machine, whose memory they share."""
    path = f"/proc/{process}/fd/{descriptor}"
    try:
        if os.stat(path).st_ino != inode:
            return None
        tracker = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None  # the process is on another machine, or has ended
    os.set_blocking(tracker, True)
    return tracker


def run_multiprocessing(payload: bytes | memoryview, descriptors: list[int]) -> int:
    """Run the process object that Popen wrote, and return its exit code."""
    _inherited[:] = descriptors
    parent, local, tracker, inode = HEADER.unpack_from(payload)
    shared = descriptors[0] if local else _tracker_of(parent, tracker, inode)
    if shared is not None:
        os.set_inheritable(shared, False)  # a fresh interpreter inherits it as inheritable
        # Importing the main program may have started a tracker in the zygote.
        _TRACKER._pid = None
        _TRACKER._fd = shared
    with cpython.making():
        process_obj = serialization.loads(memoryview(payload)[HEADER.size :])
        if isinstance(process_obj, tuple):  # (preparation data, process object); loading the data has its effect
            process_obj = process_obj[1]
    try:
        # No descriptor shows the end of a parent on another node: this one never becomes readable.
        parent_sentinel = _core.open_process(parent) if local else os.eventfd(0)
    except ProcessLookupError:
        parent_sentinel = os.eventfd(1)  # the parent has ended: always readable
    for fd in descriptors[1:]:
        os.close(fd)
    if _HONOURS_ATEXIT:
        cpython.forget_exit_handlers()  # those registered by importing the main program are for the main process
        atexit.register(cpython.end_multiprocessing)
    if sys.stdin is sys.__stdin__ and sys.stdin is not None and not sys.stdin.closed:
        cpython.leave_stdin()
    code: int = process_obj._bootstrap(parent_sentinel=parent_sentinel)
    if _HONOURS_ATEXIT:
        cpython.call_exit_handlers()
        cpython.flush_streams()
    return code
