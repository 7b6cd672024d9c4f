"""Intel's management library, Level Zero Sysman, through its Python bindings pyzes."""

from __future__ import annotations

import ctypes
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from dragon.agent.telemetry.gpu_driver import Untold

__all__ = ["LevelZero"]

_LOADER = "libze_loader.so.1"
_ROOM = 16  # spare entries for processes that start after the call that returned their number


class LevelZero:
    """The library, through the bindings `module`: calls that raise exceptions, and structures that are filled.

    If a call fails, it raises Untold with the name of the result.
    """

    def __init__(self, module: str) -> None:
        self._bindings: Any = _load(module)
        self._results = {
            value: name for name, value in vars(self._bindings).items() if name.startswith("ZE_RESULT_ERROR_")
        }

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function. Raises Untold if it fails, or if this version of the library does not have it."""
        try:
            result = getattr(self._bindings, function)(*arguments)
        except AttributeError as error:
            raise Untold(str(error)) from error
        if result != 0:
            raise Untold(self._results.get(result, f"result {result:#x}"))

    def constant(self, name: str) -> int:
        """Return a constant of the bindings."""
        return int(getattr(self._bindings, name))

    def structure(self, kind: str) -> Any:
        """Return an empty structure, with its type set where the library needs that."""
        empty = getattr(self._bindings, kind)()
        if hasattr(empty, "stype"):
            empty.stype = self._type_of(kind)
        return empty

    def filled(self, function: str, handle: Any, kind: str, extension: str = "") -> tuple[Any, Any]:
        """Return the structure that a function fills for a handle, and its extension, None if not requested."""
        told, more = self.structure(kind), self.structure(extension) if extension else None
        if more is not None:
            told.pNext = ctypes.cast(ctypes.pointer(more), ctypes.c_void_p)
        self.call(function, handle, ctypes.byref(told))
        return told, more

    def listed(self, function: str, kind: str, *owner: Any) -> list[Any]:
        """Return all handles or structures of a kind, of the owner if one is given."""
        count = ctypes.c_uint32(0)
        self.call(function, *owner, ctypes.byref(count), None)
        if count.value == 0:
            return []
        array = (getattr(self._bindings, kind) * (count.value + _ROOM))()
        if hasattr(array[0], "stype"):
            for each in array:
                each.stype = self._type_of(kind)
        count.value = len(array)
        self.call(function, *owner, ctypes.byref(count), array)
        return list(array[: count.value])

    def _type_of(self, kind: str) -> int:
        """Return a structure's type: for zes_mem_state_t it is ZES_STRUCTURE_TYPE_MEM_STATE, and so on."""
        return self.constant(kind.removesuffix("_t").upper().replace("ZES_", "ZES_STRUCTURE_TYPE_", 1))


class _OnSearchPath(ctypes.CDLL):
    """A library; for Level Zero's loader, the one on the linker's search path."""

    def __init__(self, name: str, *arguments: Any, **options: Any) -> None:
        super().__init__(_LOADER if Path(name).name == _LOADER else name, *arguments, **options)


def _load(module: str) -> ModuleType:
    """Import the bindings, with the loader. Raises ImportError if one of them is missing.

    The bindings load the loader when they are imported: up to version 0.1.3 from the folder that only Debian and Ubuntu
    have (oneapi-src/level-zero#485). Without this function, they could not be imported on other systems, nor with the
    loader of a cluster's environment module.
    """
    usual = ctypes.CDLL
    ctypes.CDLL = _OnSearchPath  # type: ignore[misc, assignment]
    try:
        return importlib.import_module(module)
    except OSError as error:
        raise ImportError(str(error)) from error
    finally:
        ctypes.CDLL = usual  # type: ignore[misc]
