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
_ROOM = 16  # for processes that begin between two questions, of which the first asks how many there are


class LevelZero:
    """The library as the bindings `module` have it: calls that raise, and structures that come back filled.

    Whatever the library refuses raises Untold with the name of its result.
    """

    def __init__(self, module: str) -> None:
        self._bindings: Any = _load(module)
        self._results = {
            value: name for name, value in vars(self._bindings).items() if name.startswith("ZE_RESULT_ERROR_")
        }

    def call(self, function: str, *arguments: Any) -> None:
        """Raises Untold where it does not succeed, or where this library is too old to have it."""
        try:
            result = getattr(self._bindings, function)(*arguments)
        except AttributeError as error:
            raise Untold(str(error)) from error
        if result != 0:
            raise Untold(self._results.get(result, f"result {result:#x}"))

    def constant(self, name: str) -> int:
        """A constant of the bindings."""
        return int(getattr(self._bindings, name))

    def structure(self, kind: str) -> Any:
        """An empty one that knows what it is, as the library asks of most of them."""
        empty = getattr(self._bindings, kind)()
        if hasattr(empty, "stype"):
            empty.stype = self._type_of(kind)
        return empty

    def filled(self, function: str, handle: Any, kind: str, extension: str = "") -> tuple[Any, Any]:
        """What a function tells of a handle, and what it tells beside that; None where nothing more is asked."""
        told, more = self.structure(kind), self.structure(extension) if extension else None
        if more is not None:
            told.pNext = ctypes.cast(ctypes.pointer(more), ctypes.c_void_p)
        self.call(function, handle, ctypes.byref(told))
        return told, more

    def listed(self, function: str, kind: str, *owner: Any) -> list[Any]:
        """What there is of a kind of handle or structure, of its owner where it has one."""
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
        """zes_mem_state_t is ZES_STRUCTURE_TYPE_MEM_STATE, and so are the others."""
        return self.constant(kind.removesuffix("_t").upper().replace("ZES_", "ZES_STRUCTURE_TYPE_", 1))


class _OnSearchPath(ctypes.CDLL):
    """A library, of which Level Zero's loader is looked for as the linker looks for any other."""

    def __init__(self, name: str, *arguments: Any, **options: Any) -> None:
        super().__init__(_LOADER if Path(name).name == _LOADER else name, *arguments, **options)


def _load(module: str) -> ModuleType:
    """The bindings, with the loader. Raises ImportError where one of both is not there.

    They load it as they are imported, up to 0.1.3 from the folder that only Debian and Ubuntu have
    (oneapi-src/level-zero#485): on other systems, and with the loader of a module of the cluster, they could not be
    imported.
    """
    usual = ctypes.CDLL
    ctypes.CDLL = _OnSearchPath  # type: ignore[misc, assignment]
    try:
        return importlib.import_module(module)
    except OSError as error:
        raise ImportError(str(error)) from error
    finally:
        ctypes.CDLL = usual  # type: ignore[misc]
