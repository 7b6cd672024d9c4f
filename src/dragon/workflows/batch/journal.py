"""The journal of a batch: a file with the result of each task that has ended well, from which a program that is started
again goes on.

A record is written as soon as its task has ended, so it outlives the process, and half a second later it is on the
disk. A task is found again by its digest: of its function's code, of its arguments, and of the tasks whose results it
takes. A task that has no such name, as it takes a handle of something that ends with the run, is run each time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
import stat
import struct
import threading
import types
import warnings
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from dragon.native.process import ProcessTemplate
from dragon.runtime.log import runtime_log
from dragon.runtime.serialization import mentions
from dragon.workflows.batch.call import Access, Call, Kind, Work
from dragon.workflows.batch.errors import BatchError
from dragon.workflows.batch.outcome import PLAIN, Input, Outcome, Sent, Value

log = runtime_log("batch")

_HEADER = b"dragon journal 1\n"
_RECORD = struct.Struct("<4s32sQI")  # a mark, the digest, the length and the checksum of what follows
_CHECK = struct.Struct("<I")  # the checksum of the record's head
_MARK = b"task"
_SYNC_S = 0.5  # seconds for which records may wait for the disk


class _Hash:
    """A file for a pickler, of which only the hash is kept."""

    def __init__(self) -> None:
        self.sha = hashlib.sha256()
        self.write = self.sha.update


class _DigestPickler(pickle.Pickler):
    """Writes what a call says, the same in each run of a program: functions by their code, and by what they use of
    their module."""

    def __init__(self, file: _Hash, inputs: list[bytes]) -> None:
        super().__init__(file, protocol=5)
        self.fast = True  # whether two equal arguments are one object does not matter
        self._inputs = inputs
        self._written: set[types.FunctionType] = set()

    def reducer_override(self, obj: object) -> Any:
        if obj is _contents:
            return NotImplemented
        if isinstance(obj, types.MethodType):
            return _contents, (obj.__self__, obj.__func__)
        if isinstance(obj, types.FunctionType):
            return _contents, (obj.__module__, obj.__qualname__, *self._once(obj))
        if isinstance(obj, Input):
            return _contents, ("the result of", self._inputs[obj.index])
        return NotImplemented

    def _once(self, function: types.FunctionType) -> Iterator[object]:
        """Yield what a function says, the first time; functions may call each other."""
        if function in self._written:
            return
        self._written.add(function)
        yield from (function.__defaults__, function.__kwdefaults__)
        yield [cell.cell_contents for cell in function.__closure__ or ()]
        names: set[str] = set()
        yield from _code(function.__code__, names)
        for name in sorted(names & function.__globals__.keys()):
            value = function.__globals__[name]
            own = isinstance(value, types.FunctionType) and value.__module__ == function.__module__
            if own or type(value) in PLAIN:
                yield name, value


def _contents(*parts: object) -> tuple[object, ...]:
    return parts


def _code(code: types.CodeType, names: set[str]) -> Iterator[object]:
    """Yield the parts of a code object; add the names that it uses to `names`."""
    names.update(code.co_names)
    yield from (code.co_code, code.co_names, code.co_varnames)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant, names)
        else:
            yield sorted(constant, key=repr) if isinstance(constant, frozenset) else constant


def digest(kind: Kind, work: Work, inputs: Iterable[bytes], key: str | None) -> bytes:
    """Return what a task is called in journals; empty for one that is not kept there: it takes a handle, the result of
    a task that is not kept, or what cannot be pickled by its contents."""
    if key is not None:
        return hashlib.sha256(b"key " + key.encode(errors="surrogateescape")).digest()
    before = list(inputs)
    if not all(before):
        return b""
    target, args, kwargs = work
    if kind != Kind.FUNCTION:
        args = tuple(_flat(args))
    written = _Hash()
    try:
        with mentions() as handles:
            _DigestPickler(written, before).dump((int(kind), target, args, kwargs))
    except Exception:  # its own pickler says why when the task is submitted, if that fails too
        return b""
    return b"" if handles else written.sha.digest()


def _flat(parts: Iterable[object]) -> Iterator[object]:
    for part in parts:
        if isinstance(part, (list, tuple)):
            yield from _flat(part)
        else:
            yield part.get_sdict() if isinstance(part, ProcessTemplate) else part


class Journal:
    """The records of earlier runs of a program, and those that this one adds.

    Raises BatchError for a file that is none, is another user's, or is in use; OSError if it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            self._check()
            self._found: dict[bytes, tuple[int, int]] = {}
            self._equal: Counter[bytes] = Counter()
            self._end = self._read()
        except BaseException:
            os.close(self._file)
            raise
        self._changed: set[Hashable] = set()  # parts of data that tasks of this run may have changed
        self._ends, self._is_new = threading.Event(), threading.Event()
        self._syncing = threading.Thread(target=self._sync, name="dragon-journal", daemon=True)
        self._syncing.start()

    def _check(self) -> None:
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode):
            raise BatchError(f"the journal {self.path} is no regular file")
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise BatchError(
                f"the journal {self.path} may be written by other users, whose results would be unpickled here: "
                "it must be yours, and without write permission for others (chmod go-w)"
            )
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BatchError(f"the journal {self.path} is in use by another batch") from None

    def _read(self) -> int:
        """Read the heads of all records; cut what a crash has left unfinished. Returns where the next one begins."""
        size = os.fstat(self._file).st_size
        begin = os.pread(self._file, len(_HEADER), 0)
        if size < len(_HEADER) and _HEADER.startswith(begin):  # it is new, or its first write was cut
            os.pwrite(self._file, _HEADER, 0)
            os.fsync(self._file)
            folder = os.open(os.path.dirname(self.path), os.O_RDONLY)
            try:
                os.fsync(folder)  # so that the name is on the disk, too
            finally:
                os.close(folder)
            return len(_HEADER)
        if begin != _HEADER:
            raise BatchError(f"{self.path} is no journal of a batch: name another file")
        at, damaged = len(_HEADER), 0
        head_size = _RECORD.size + _CHECK.size
        while at + head_size <= size:
            head = os.pread(self._file, head_size, at)
            mark, name, length, checksum = _RECORD.unpack_from(head)
            [own] = _CHECK.unpack_from(head, _RECORD.size)
            if mark != _MARK or own != zlib.crc32(head[: _RECORD.size]) or at + head_size + length > size:
                break
            if zlib.crc32(os.pread(self._file, length, at + head_size)) == checksum:
                self._found[name] = at + head_size, length
            else:
                damaged += 1
            at += head_size + length
        if damaged:
            warnings.warn(f"{damaged} records of {self.path} are damaged: their tasks run again", stacklevel=4)
        if at < size:
            warnings.warn(f"the last {size - at} bytes of {self.path} are no whole record: removed", stacklevel=4)
            os.ftruncate(self._file, at)
        return at

    # ---- what has been done

    def named(self, call: Call) -> Call:
        """Return the call under a name that equal calls before it do not have."""
        if not call.digest:
            return call
        self._equal[call.digest] += 1
        return call._replace(digest=hashlib.sha256(b"%d " % self._equal[call.digest] + call.digest).digest())

    def take(self, call: Call, restored: bool) -> Value | None:
        """Return the result of a task of an earlier run; None if there is none that holds.

        It does not hold if the files that the task reads or writes have changed since its end, or may change in this
        run before it would have run; nor if a task whose result it takes was not itself `restored`.
        """
        value = self._take(call, restored) if call.digest else None
        if value is None:
            self._changed.update(part for one in call.accesses if one.writes for part in _parts(one))
        return value

    def _take(self, call: Call, restored: bool) -> Value | None:
        place = self._found.get(call.digest)
        if not place or not restored or any(part in self._changed for one in call.accesses for part in _parts(one)):
            return None
        at, length = place
        sent, versions = pickle.loads(os.pread(self._file, length, at))
        return Value(sent) if versions is not None and versions == _versions(call.accesses) else None

    # ---- what is done now

    def add(self, call: Call, outcome: Outcome) -> None:
        """Keep the result of a task, unless it failed or refers to what ends with the run."""
        if not call.digest or not isinstance(outcome, Value) or self._ends.is_set():
            return
        sent = outcome.plain()
        if call.kind != Kind.FUNCTION:
            sent = (None, [], outcome.get()) if outcome.get() in (0, [0] * call.weight) else None
        if sent is None:
            return
        data, buffers, value = sent
        kept: Sent = data, [bytes(buffer) for buffer in buffers], value
        body = pickle.dumps((kept, _versions(call.accesses)), protocol=5)
        head = _RECORD.pack(_MARK, call.digest, len(body), zlib.crc32(body))
        record = head + _CHECK.pack(zlib.crc32(head)) + body
        try:
            written = 0
            while written < len(record):
                written += os.pwrite(self._file, memoryview(record)[written:], self._end + written)
        except OSError as error:
            self._ends.set()
            with suppress(OSError):
                os.ftruncate(self._file, self._end)
            log.warning("the journal %s takes no more results: %s", self.path, error)
            return
        self._end += len(record)
        self._is_new.set()

    def _sync(self) -> None:
        while not self._ends.wait(_SYNC_S):
            if self._is_new.is_set():
                self._is_new.clear()
                self._on_disk()

    def _on_disk(self) -> None:
        try:
            os.fsync(self._file)
        except OSError as error:
            log.warning("the journal %s may not be on the disk: %s", self.path, error)

    def close(self) -> None:
        """Write what is left to the disk, and let others use the file."""
        self._ends.set()
        self._syncing.join()
        if self._file >= 0:
            self._on_disk()
            os.close(self._file)
            self._file = -1


def _parts(one: Access) -> Iterator[Hashable]:
    yield from ((one.obj, part) for part in one.parts or (None,))


def _versions(accesses: Iterable[Access]) -> list[tuple[str, int, int]] | None:
    """Return what tells whether files have changed; None for data that are no files that can be seen here."""
    found = []
    for one in accesses:
        if one.obj != "files":
            return None
        for path in one.parts:
            try:
                now = os.stat(str(path))
            except OSError:
                return None
            found.append((str(path), now.st_mtime_ns, now.st_size))
    return found
