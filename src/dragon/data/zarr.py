"""A zarr store in a distributed dictionary: arrays that all processes of a run read and write at the same time.

Keys are those of zarr, values are bytes objects. Other keys of the dictionary (numbers, tuples) are ignored. A handle
of the store, and arrays and groups in it, can be sent to any process of the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from dragon.data.ddict import DDICT_MIN_SIZE, DDict, DDictKeyError
from dragon.data.ddict.shards import Pending
from dragon.infrastructure.policy import Policy
from dragon.native.pool import Pool
from dragon.native.results import ApplyResult
from dragon.native.semaphore import Semaphore
from dragon.shards.shard import MISSING

_BYTES_AT_ONCE = 64 * 2**20  # bytes of files that one task puts
_FILES_AT_ONCE = 256  # files that one task puts
_BESIDE = 4096  # bytes that an entry takes in addition to its value, at most
_LOADING_POLL_S = 0.005  # seconds between two checks by a process that did not start the loading


class Loading:
    """A folder whose files are being loaded, for all processes that have a handle of the store: keys are their paths
    relative to the folder, values their contents."""

    def __init__(self, ddict: DDict, folder: Path, files: list[tuple[str, int]], processes: int) -> None:
        self._folder = folder.absolute()
        self._loaded = Semaphore(0)  # tasks that are done
        self._over = False
        parts = list(_parts(files))
        self._count = len(parts)
        pool = Pool(processes, policy=Policy(placement=Policy.Placement.LOCAL))
        self.tasks: list[ApplyResult[int]] | None = None  # None in other processes, which do not wait for the results
        self.tasks = [pool.apply_async(self._put_files, (ddict, folder, part)) for part in parts]
        pool.close()  # its processes end with the last task

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "tasks": None}

    def _put_files(self, ddict: DDict, folder: Path, names: list[str]) -> int:
        """Load some files, as a task of the pool, and return their size in bytes. Existing keys are not replaced."""
        values = {name: (folder / name).read_bytes() for name in names}
        for pending in [ddict.begin_put_new(name, value) for name, value in values.items()]:
            pending.result(ddict.timeout)
        self._loaded.release()
        return sum(map(len, values.values()))

    def is_over(self) -> bool:
        """Return whether all files are in the dictionary. If a loader failed it stays False."""
        self._over = self._over or self._loaded.get_value() >= self._count
        return self._over

    def wait(self, timeout: float | None) -> None:
        """Wait until all files are in the dictionary. Raises TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_over():
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"{self._folder} was not loaded within {timeout} s")
            time.sleep(_LOADING_POLL_S)

    def total(self, timeout: float | None = None) -> int:
        """Wait until all files are loaded and return their total size in bytes. Raises what a task raised."""
        deadline = None if timeout is None else time.monotonic() + timeout
        return sum(
            task.get(None if deadline is None else max(0.0, deadline - time.monotonic())) for task in self.tasks or []
        )

    def is_complete(self) -> bool:
        """Return whether all tasks have ended. Raises what a task raised."""
        complete = self.tasks is not None and all(task.ready() for task in self.tasks)
        if complete:
            self.total()
        return complete

    def bytes_so_far(self) -> int:
        """Return the number of bytes that are loaded."""
        return sum(task.get() for task in self.tasks or () if task.ready() and task.successful())

    def files(self) -> dict[str, int]:
        """Return the sizes of the files in bytes, by their keys."""
        return dict(files_below(self._folder))

    def size(self, key: str) -> int | None:
        """Return the size of a key's file in bytes, None if there is none."""
        file = self._file(key)
        return None if file is None else file.stat().st_size

    def read(self, key: str, part: slice | None = None) -> bytes | None:
        """Return the contents of a key's file, None if there is none."""
        file = self._file(key)
        return None if file is None else file.read_bytes()[part or slice(None)]

    def _file(self, key: str) -> Path | None:
        """Return the file of a key, if any. Raises FileNotFoundError on a node without the folder."""
        if not self._folder.is_dir():
            raise FileNotFoundError(
                f"{key!r} is not loaded yet, and this node has no folder {self._folder} to read it from: "
                "wait_on_load() before the store is used here"
            )
        parts = key.split("/")
        file = self._folder.joinpath(*parts)
        return file if ".." not in parts and file.is_file() else None


def files_below(folder: Path) -> list[tuple[str, int]]:
    """Return (path, size in bytes) of every file below a folder. Raises OSError if there is no such folder."""
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    found = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return [(file.relative_to(folder).as_posix(), file.stat().st_size) for file in found]


def memory_for(
    files: list[tuple[str, int]],
    managers_per_node: int | None = 1,
    n_nodes: int | None = 1,
    *,
    policy: object = None,
    managers_per_policy: int = 1,
    **others: object,
) -> int:
    """Return the bytes that a dictionary needs for all files, with a margin because managers do not get equal
    shares."""
    managers = (managers_per_node or 1) * (n_nodes or 1)
    if isinstance(policy, (list, tuple)):
        managers = len(policy) * managers_per_policy
    largest = max((size for _, size in files), default=0)
    share = sum(size + _BESIDE for _, size in files) / managers
    return int(managers * (share * (1.25 if managers == 1 else 1.5) + 2 * largest + DDICT_MIN_SIZE))


def _parts(files: list[tuple[str, int]]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for name, of_file in files:
        if part and (size + of_file > _BYTES_AT_ONCE or len(part) >= _FILES_AT_ONCE):
            yield part
            part, size = [], 0
        part.append(name)
        size += of_file
    if part:
        yield part


try:
    from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
    from zarr.abc.store import Store as ZarrStore
    from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "dragon.data.zarr needs zarr 3: pip install 'dragon-runtime[zarr]'", name="zarr"
    ) from error

__all__ = ["Store"]


class Store(ZarrStore):  # type: ignore[misc]
    """A zarr store over a dictionary.

    Args:
        args, ddict_kwargs: the arguments of DDict, for a new dictionary; or one existing DDict.
        ddict: an existing dictionary.
        path: a folder that holds a zarr store, whose files are put into the dictionary by `nloaders` processes of this
            node in the background. A new dictionary is made large enough unless `total_mem` is given. A key that is not
            loaded yet is read from its file; deleting a key waits until all files are loaded.
        nloaders: the number of processes that load the folder.
        read_only: whether this handle refuses to write. Other handles may.
        dimension_separator, use_copy_store: accepted for dragonhpc's programs; loading needs neither.

    Attributes:
        show_gets: whether each key that this handle reads is printed, to find out what a program reads. False at first.
        supports_writes, supports_deletes, supports_listing: True, as zarr asks for.

    Raises OSError if `path` is not a folder, RuntimeError if `nloaders` is less than 1, and the exceptions of DDict.
    The dictionary exists until destroy(), or while any process has a handle; close() does not end it.

    Reads that are awaited together (`asyncio.gather`, as zarr does for chunks) are requested together. set() and
    set_if_not_exists() are atomic.

    Examples:
        >>> import zarr
        >>> from dragon.data.zarr import Store
        >>> store = Store(1, 1, 16 * 2**20)
        >>> array = zarr.create_array(store, shape=(4,), chunks=(2,), dtype="i4")
        >>> array[:] = [1, 2, 3, 4]
        >>> int(zarr.open_array(store)[:].sum())
        10
        >>> store.destroy()
    """

    supports_writes = True
    supports_deletes = True
    supports_listing = True

    def __init__(
        self,
        *args: Any,
        ddict: DDict | None = None,
        path: str | Path | None = None,
        nloaders: int = 2,
        read_only: bool = False,
        dimension_separator: str | None = None,
        use_copy_store: bool = True,
        **ddict_kwargs: Any,
    ) -> None:
        super().__init__(read_only=read_only)
        if args and isinstance(args[0], DDict):
            ddict, args = args[0], args[1:]
        if ddict is not None and (args or ddict_kwargs):
            raise TypeError("an existing dictionary cannot be combined with arguments for a new one")
        files = [] if path is None else files_below(Path(path))
        if nloaders < 1:
            raise RuntimeError(f"nloaders must be at least 1, not {nloaders}")
        if ddict is None:
            if path is not None and len(args) < 3:
                ddict_kwargs.setdefault("total_mem", memory_for(files, *args, **ddict_kwargs))
            ddict = DDict(*args, **ddict_kwargs)
        self._ddict = ddict
        self._loading = None if path is None else Loading(ddict, Path(path), files, nloaders)
        self._get_seconds = 0.0
        self.show_gets = False

    @property
    def ddict(self) -> DDict:
        """The dictionary."""
        return self._ddict

    def destroy(self) -> None:
        """Remove the dictionary, for all processes."""
        self._ddict.destroy()

    def unfreeze(self) -> None:
        """Allow writes to the dictionary again after `store.ddict.freeze()`."""
        self._ddict.unfreeze()

    def keys(self) -> list[str]:
        """Return all keys."""
        return list(self._keys(""))

    def with_read_only(self, read_only: bool = False) -> Self:
        """Return another handle that refuses to write, or does not."""
        other = type(self)(self._ddict, read_only=read_only)
        other._loading = self._loading
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and (self._ddict, self.read_only) == (other._ddict, other.read_only)

    def __hash__(self) -> int:
        return hash((self._ddict, self.read_only))

    def __str__(self) -> str:
        return f"ddict://{self._ddict.get_name()}"

    def __repr__(self) -> str:
        return f"Store('{self}')"

    # ---- loading a folder

    def wait_on_load(self, timeout: float | None = None) -> int:
        """Wait until the folder is loaded and return its size in bytes.

        Raises TimeoutError after `timeout` seconds, RuntimeError if there was no folder to load, and what a loader
        raised:
        OSError for a file that cannot be read, DDictFullError if the memory is too small.
        """
        if self._loading is None or self._loading.tasks is None:
            raise RuntimeError("no data has been loaded: the store was made without a path")
        return self._loading.total(timeout)

    def load_cmplt(self) -> bool:
        """Return whether loading is complete; False without a folder. Raises what a loader raised."""
        return self._loading is not None and self._loading.is_complete()

    @property
    def loaded_bytes(self) -> int:
        """The number of bytes that are loaded."""
        return 0 if self._loading is None else self._loading.bytes_so_far()

    def _not_loaded_yet(self) -> Loading | None:
        """Return the folder whose files may not all be in the dictionary, or None."""
        return None if self._loading is None or self._loading.is_over() else self._loading

    @property
    def get_timer(self) -> float:
        """The seconds that get() has taken in this handle."""
        return self._get_seconds

    def reset_get_timer(self) -> None:
        """Reset get_timer to zero."""
        self._get_seconds = 0.0

    # ---- zarr's operations

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return the value of a key or a part of it, None if the key is missing."""
        await self._ensure_open()
        if self.show_gets:
            print(f"get {key}", flush=True)
        buffer = (prototype or default_buffer_prototype()).buffer
        part = None if byte_range is None else slice(*_part(byte_range))
        begun = time.perf_counter()
        source = self._not_loaded_yet()
        pending = self._ddict._begin(*(("part", key, part.start, part.stop) if part else ("value", key)))
        self._get_seconds += time.perf_counter() - begun
        try:
            await asyncio.sleep(0)  # reads that are awaited together send their requests first, and then all wait
        finally:
            begun = time.perf_counter()
            value = pending.result(self._ddict.timeout)
        if value is MISSING or value is None:
            value = source.read(key, part) if source else None
        self._get_seconds += time.perf_counter() - begun
        if value is None:
            return None
        if not isinstance(value, bytes):
            raise TypeError(f"the value of {key!r} is no bytes object but of type {type(value).__name__}")
        return buffer.from_bytes(value)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return several values or parts, requested together."""
        return list(await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Return whether a key exists."""
        source = self._not_loaded_yet()
        return key in self._ddict or (source is not None and source.size(key) is not None)

    async def set(self, key: str, value: Buffer) -> None:
        """Put a value."""
        await self._set(value, lambda data: self._ddict.begin_put(key, data))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Put a value unless the key exists. Of several processes that do so at the same time one puts its value."""
        self._check_writable()
        source = self._not_loaded_yet()
        if source is None or source.size(key) is None:
            await self._set(value, lambda data: self._ddict.begin_put_new(key, data))

    async def _set(self, value: Buffer, begin: Callable[[bytes], Pending]) -> None:
        self._check_writable()
        await self._ensure_open()
        if not isinstance(value, Buffer):
            raise TypeError(f"a value must be a Buffer, not of type {type(value).__name__}")
        pending = begin(value.to_bytes())
        try:
            await asyncio.sleep(0)
        finally:
            pending.result(self._ddict.timeout)

    async def delete(self, key: str) -> None:
        """Remove a key if it exists."""
        self._check_writable()
        if source := self._not_loaded_yet():
            source.wait(self._ddict.timeout)  # otherwise a loader could put the key again
        try:
            del self._ddict[key]
        except DDictKeyError:
            return

    async def getsize(self, key: str) -> int:
        """Return the size of a value in bytes. Raises FileNotFoundError."""
        source = self._not_loaded_yet()
        try:
            return max(0, self._ddict.bytes_size(key))
        except DDictKeyError:
            size = source.size(key) if source else None
            if size is None:
                raise FileNotFoundError(key) from None
            return size

    async def getsize_prefix(self, prefix: str) -> int:
        """Return the total size in bytes of all values below a folder."""
        start = _folder(prefix)
        source = self._not_loaded_yet()
        sizes = {**(source.files() if source else {}), **dict(self._ddict.bytes_sizes())}
        return sum(max(0, size) for key, size in sizes.items() if isinstance(key, str) and key.startswith(start))

    async def list(self) -> AsyncIterator[str]:
        """Yield all keys."""
        for key in self._keys(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys that begin with a prefix."""
        for key in self._keys(prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names of keys and folders in a folder."""
        start = _folder(prefix)
        for name in {key[len(start) :].partition("/")[0] for key in self._keys(start)}:
            yield name

    def _keys(self, prefix: str) -> Iterator[str]:
        source = self._not_loaded_yet()
        keys = {*source.files(), *self._ddict} if source else self._ddict
        return (key for key in keys if isinstance(key, str) and key.startswith(prefix))


def _folder(prefix: str) -> str:
    name = prefix.rstrip("/")
    return f"{name}/" if name else ""


def _part(request: ByteRequest) -> tuple[int, int | None]:
    """Return the start and stop of the slice that a request means."""
    if isinstance(request, RangeByteRequest):
        return request.start, request.end
    if isinstance(request, OffsetByteRequest):
        return request.offset, None
    if isinstance(request, SuffixByteRequest):
        return (-request.suffix, None) if request.suffix else (0, 0)
    raise ValueError(f"Unexpected byte_range, got {request}.")
