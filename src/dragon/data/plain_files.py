"""Reads and writes keys and values as the files of a folder.

Strings and bytes objects are written as they are, arrays as `.npy`, everything else as `.pickle`. A file's name is made
of its key as far as file names allow; `keys.jsonl` lists the key of each file. A folder without it is read as well: the
keys are then the paths of its files, and the values bytes objects, or arrays if the name ends in `.npy`.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote

from dragon.infrastructure.errors import DragonError
from dragon.runtime.serialization import dumps
from dragon.shards.records import decode_key, encode_key


class PickleRefusedError(DragonError):
    """A file holds a pickle, and the reader did not allow pickles."""


def loader(allowed: bool, where: object) -> Callable[..., Any]:
    """Return pickle.loads, or if not `allowed` a function that raises PickleRefusedError about the file `where`."""

    def refuse(data: object, **options: object) -> NoReturn:
        raise PickleRefusedError(
            f"{where} has pickled objects, and loading those can run any program: allow it (--allow-pickle) "
            "if you trust the author of the file"
        )

    return pickle.loads if allowed else refuse


T = TypeVar("T")


def progress(things: Iterable[T], unit: str, total: int | None = None) -> Iterator[T]:
    """Iterate over `things`; on a terminal with tqdm's progress bar if that takes more than a second."""
    if importlib.util.find_spec("tqdm") is None:
        return iter(things)
    from tqdm import tqdm

    shown: Iterable[T] = tqdm(things, total=total, unit=f" {unit}", delay=1, disable=None)
    return iter(shown)


_INDEX = "keys.jsonl"
_MAX_NAME_CHARS = 120  # characters of a name; a file system takes 255 bytes
_SAFE = " !#$&'()+,;=@[]{}"


# ---- writing


def write_folder(folder: Path, pairs: Iterable[tuple[Any, Any]]) -> int:
    """Write a file for each key and return their number. Raises OSError, FileExistsError if the folder is not empty."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; name another folder, which is made")
    count = 0
    used = {_INDEX}
    with (folder / _INDEX).open("x", encoding="utf-8") as index:
        for key, value in pairs:
            kind, data = _contents(value)
            suffix = f".{kind}" if kind in ("npy", "pickle") else ""
            encoded = encode_key(key)
            name = _name(key, encoded, suffix, used)
            if kind == "npy":
                import numpy as np

                np.save(folder / name, value, allow_pickle=False)
            else:
                (folder / name).write_bytes(data)
            line = {"file": name, "kind": kind, "key": key if isinstance(key, (str, int)) else _text(encoded)}
            index.write(json.dumps({**line, "encoded": not isinstance(key, (str, int))}) + "\n")
            count += 1
    return count


def _contents(value: Any) -> tuple[str, bytes]:
    """Return the kind of a file and its bytes, which are empty for arrays."""
    if type(value) is bytes:
        return "bytes", value
    if type(value) is str:
        return "str", value.encode("utf-8", "surrogatepass")
    # Compared by name, so that numpy is imported only if a value is an array.
    kind = type(value)
    if kind.__name__ == "ndarray" and kind.__module__ == "numpy" and not value.dtype.hasobject:
        return "npy", b""
    return "pickle", dumps(value)


def _name(key: object, encoded: bytes, suffix: str, used: set[str]) -> str:
    """Return an unused file name that resembles the key."""
    text = key if isinstance(key, str) else repr(key)
    plain = quote(text.encode("utf-8", "surrogatepass"), safe=_SAFE)
    if plain.startswith("."):
        plain = "%2E" + plain[1:]
    name = plain + suffix
    # Some file systems ignore case in names.
    if len(plain) > _MAX_NAME_CHARS or not plain or name.lower() in used:
        name = f"{plain[:_MAX_NAME_CHARS]}-{blake2b(encoded, digest_size=8).hexdigest()}{suffix}"
    used.add(name.lower())
    return name


def _text(encoded: bytes) -> str:
    return base64.b64encode(encoded).decode()


# ---- reading


def read_folder(folder: Path, allow_pickle: bool = False) -> tuple[int, Iterator[tuple[Any, Any]]]:
    """Return the number of keys in a folder, and an iterator over (key, value).

    Raises OSError, ValueError if `keys.jsonl` is damaged, PickleRefusedError.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    if not (folder / _INDEX).exists():
        files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
        return len(files), (
            (file.relative_to(folder).as_posix(), _value(file, "npy" if file.suffix == ".npy" else "bytes", False))
            for file in files
        )
    entries = [_entry(folder, line) for line in (folder / _INDEX).read_text("utf-8").splitlines()]
    if not allow_pickle:
        for file, kind, key in entries:
            if kind == "pickle":
                loader(False, file)(b"")
            decode_key(key, loader(False, f"{folder / _INDEX}"))
    loads = loader(allow_pickle, folder / _INDEX)
    return len(entries), ((decode_key(key, loads), _value(file, kind, allow_pickle)) for file, kind, key in entries)


def _entry(folder: Path, line: str) -> tuple[Path, str, bytes]:
    """Return the file, the kind of its value, and the encoded key."""
    try:
        entry = json.loads(line)
        name, kind, key = entry["file"], entry["kind"], entry["key"]
        encoded = base64.b64decode(key, validate=True) if entry["encoded"] else encode_key(key)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / _INDEX} is damaged: {line[:80]!r}: {error}") from error
    if Path(name).name != name or kind not in ("bytes", "str", "npy", "pickle"):
        raise ValueError(f"{folder / _INDEX} is damaged: {line[:80]!r}")
    return folder / name, kind, encoded


def _value(file: Path, kind: str, allow_pickle: bool) -> object:
    if kind == "npy":
        import numpy as np

        return np.load(file, allow_pickle=False)
    data = file.read_bytes()
    if kind == "str":
        return data.decode("utf-8", "surrogatepass")
    return loader(allow_pickle, file)(data) if kind == "pickle" else data
