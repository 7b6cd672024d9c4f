"""A distributed dictionary as a file system, `ddict://` of fsspec.

A file is a string key with its bytes value; the path `ddict://data/one.parquet` means the key `data/one.parquet`.
Folders exist only as parts of paths, so making one has no effect. Other values are listed with the type "other", and
cannot be read. Paths have no slash at their beginning or end; keys that have one, and keys that are not strings, are
not listed.

An open file is in memory as a whole. A new one is put into the dictionary when it is closed, completely or not at all.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from dragon.data.ddict import DDict, DDictKeyError

try:
    from fsspec import AbstractFileSystem
    from fsspec.utils import tokenize
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("ddict:// needs fsspec: pip install 'dragon-runtime[arrow]'", name="fsspec") from error


__all__ = ["DictionaryFileSystem"]


class DictionaryFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of one dictionary.

    Args:
        dictionary: the dictionary, or the text of its serialize().
        options: those of every file system of fsspec.

    (The argument is not called `ddict`, because fsspec.open() uses the protocol's name for its own options.)

    Attributes:
        protocol: the name of the protocol in paths.
        cachable: False: fsspec must not reuse an instance, because equal arguments may mean different dictionaries.
        ddict: the dictionary.

    Examples:
        >>> from dragon.data.ddict import DDict
        >>> from dragon.data.files import DictionaryFileSystem
        >>> with DDict(1, 1, 16 * 2**20) as ddict:
        ...     files = DictionaryFileSystem(ddict)
        ...     files.pipe("results/a.txt", b"42")
        ...     files.cat("results/a.txt"), files.exists("results/b.txt")
        (b'42', False)
    """

    protocol = "ddict"
    cachable = False  # a dictionary's name does not identify it

    def __init__(self, dictionary: DDict | str | None = None, **options: object) -> None:
        super().__init__(**options)
        if dictionary is None:
            raise TypeError("ddict:// needs the option dictionary=, a DDict or the text of its serialize()")
        self.ddict = DDict.attach(dictionary) if isinstance(dictionary, str) else dictionary

    @property
    def _fs_token(self) -> str:
        return str(tokenize(type(self), self.ddict.serialize()))

    @classmethod
    def _strip_protocol(cls, path: object) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return str(path).removeprefix("ddict://").strip("/")

    # ---- listing

    def _sizes(self, below: str) -> Iterator[tuple[str, int]]:
        """Yield the keys below a folder with the sizes of their values, -1 for a value that is not a bytes object."""
        start = f"{below}/" if below else ""
        for key, size in self.ddict.bytes_sizes():
            if isinstance(key, str) and key.startswith(start) and key and key == key.strip("/"):
                yield key, size

    def ls(self, path: str, detail: bool = True, **options: object) -> list[Any]:
        """Return the entries of a folder, or the one file. Raises FileNotFoundError."""
        path = self._strip_protocol(path)
        found: dict[str, dict[str, Any]] = {}
        for key, size in self._sizes(path):
            name, _, rest = key[len(path) + 1 if path else 0 :].partition("/")
            name = f"{path}/{name}" if path else name
            if not rest:
                found[name] = _described(name, size)
            elif name not in found:
                found[name] = _folder(name)
        if not found and path:
            found[path] = self.info(path)
        return [found[name] if detail else name for name in sorted(found)]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: object
    ) -> dict[str, dict[str, Any]] | list[str]:
        """Return all files below a folder, and with `withdirs` also the folders."""
        path = self._strip_protocol(path)
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        found: dict[str, dict[str, Any]] = {}
        for key, size in self._sizes(path):
            parts = key[len(path) + 1 if path else 0 :].split("/")
            if withdirs:
                for depth in range(1, min(len(parts), (maxdepth or len(parts)) + 1)):
                    name = "/".join([*([path] if path else []), *parts[:depth]])
                    found.setdefault(name, _folder(name))
            if size >= 0 and (maxdepth is None or len(parts) <= maxdepth):
                found[key] = _described(key, size)
        if path and withdirs and found:
            found.setdefault(path, _folder(path))
        elif path and not found and self.isfile(path):
            found[path] = self.info(path)
        names = sorted(found)
        return {name: found[name] for name in names} if detail else names

    def info(self, path: str, **options: object) -> dict[str, Any]:
        """Return name, size in bytes and type of one path. Raises FileNotFoundError."""
        path = self._strip_protocol(path)
        size = self._size(path) if path else None
        if size is not None:
            return _described(path, size)
        if path and next(self._sizes(path), None) is None:
            raise FileNotFoundError(path)
        return _folder(path)

    def _size(self, path: str) -> int | None:
        try:
            return self.ddict.bytes_size(path)
        except DDictKeyError:
            return None

    def isfile(self, path: str) -> bool:
        """Return whether a path is a file."""
        size = self._size(self._strip_protocol(path))
        return size is not None and size >= 0

    # ---- reading and writing

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: object) -> bytes:
        """Return the bytes of a file, or of a part of it, which alone is fetched. Raises FileNotFoundError."""
        path = self._strip_protocol(path)
        try:
            if start is not None or end is not None:
                return self.ddict.get_part(path, start, end)
            value = self.ddict[path]
        except DDictKeyError:
            raise FileNotFoundError(path) from None
        if not isinstance(value, bytes):
            raise TypeError(f"{path!r} is no file: its value is of type {type(value).__name__}")
        return value

    def pipe_file(self, path: str, value: bytes | bytearray | memoryview, mode: str = "overwrite", **_: object) -> None:
        """Write a whole file. Raises FileExistsError with the mode "create"."""
        path = self._strip_protocol(path)
        if mode == "create" and path in self.ddict:
            raise FileExistsError(path)
        self.ddict[path] = bytes(value)

    def cp_file(self, path1: str, path2: str, **options: object) -> None:
        """Copy a file."""
        if self.isdir(path1):
            return  # a folder exists once it has files
        self.pipe_file(path2, self.cat_file(path1))

    def _rm(self, path: str) -> None:
        path = self._strip_protocol(path)
        try:
            del self.ddict[path]
        except DDictKeyError:
            raise FileNotFoundError(path) from None

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files, and with `recursive` also the contents of folders. Raises FileNotFoundError,
        IsADirectoryError."""
        # A folder disappears with its last file, so only files are removed.
        paths = self.expand_path(path, recursive=recursive, maxdepth=maxdepth)
        folders = [one for one in paths if self.isdir(one)]
        if folders and not recursive:
            raise IsADirectoryError(f"{folders[0]} is a folder; remove it with recursive=True")
        for one in paths:
            if one not in folders:
                self.rm_file(one)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: object = None,
        **options: object,
    ) -> io.BytesIO:
        if mode == "rb":
            return io.BytesIO(self.cat_file(path))
        if mode not in ("wb", "xb", "ab"):
            raise ValueError(f"files of a dictionary are opened to be read, written or appended to, not with {mode!r}")
        there = path in self.ddict
        if mode == "xb" and there:
            raise FileExistsError(path)
        return _NewFile(self.ddict, path, self.cat_file(path) if mode == "ab" and there else b"", autocommit)


class _NewFile(io.BytesIO):
    """A file that is put into the dictionary when it is closed, unless its `with` block raises."""

    def __init__(self, ddict: DDict, path: str, data: bytes, autocommit: bool) -> None:
        super().__init__(data)
        self.seek(0, io.SEEK_END)
        self._ddict = ddict
        self.path = path
        self._autocommit = autocommit
        self._data: bytes | None = None

    def close(self) -> None:
        """Put the file, unless a transaction commits it later."""
        if self.closed:
            return
        self._data = self.getvalue()
        super().close()
        if self._autocommit:
            self.commit()

    def commit(self) -> None:
        """Put the file."""
        if self._data is not None:
            self._ddict[self.path] = self._data
            self._data = None

    def discard(self) -> None:
        """Close the file without putting it."""
        super().close()
        self._data = None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close() if kind is None else self.discard()


def _described(name: str, size: int) -> dict[str, Any]:
    return {"name": name, "size": max(size, 0), "type": "file" if size >= 0 else "other"}


def _folder(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}
