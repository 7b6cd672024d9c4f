"""Loads the modules of a package when they are first used as its attributes."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


def submodule(package: str, name: str) -> ModuleType:
    """Return a module of a package, for its `__getattr__`. Raises AttributeError if there is none."""
    import importlib.util  # not imported before: few programs need it

    full = f"{package}.{name}"
    if name.startswith("_") or importlib.util.find_spec(full) is None:
        told = f"module {package!r} has no attribute {name!r}"
        for other in () if name.startswith("_") else ("dragon", "dragon.native"):
            if other != package and name in importlib.import_module(other).__all__:
                told += f"; use `from {other} import {name}`"
                # An import statement replaces the text of an AttributeError.
                if sys._getframe(2).f_globals["__name__"] == "importlib._bootstrap":
                    raise ImportError(told, name=package)
        raise AttributeError(told)
    return importlib.import_module(full)


def name_of_package(package: str, module: str, name: str) -> object:
    """Return a public name of a package, for the `__getattr__` of one of its modules that programs import it from as
    well."""
    whole = importlib.import_module(package)
    if name not in getattr(whole, "__all__", ()):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(whole, name)


class LaterModule(ModuleType):
    """Stands for a module of a package until one of its names is used; importing the module replaces it there."""

    def __getattr__(self, name: str) -> object:
        return getattr(importlib.import_module(self.__name__), name)

    def __reduce__(self) -> tuple[object, ...]:
        return importlib.import_module, (self.__name__,)
