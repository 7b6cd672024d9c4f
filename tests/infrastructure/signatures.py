"""The parameters of the public callables of modules, one callable a line: of dragonhpc, or of what is installed here.

dragonhpc_names.txt lists the modules and names, the guide those that are not here. To record dragonhpc's, run this with
its interpreter: python signatures.py > dragonhpc_signatures.txt
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NAMES = Path(__file__).with_name("dragonhpc_names.txt")
GUIDE = Path(__file__).parents[2] / "docs" / "from_dragonhpc.md"

Call = Callable[..., Any]


def listed() -> tuple[list[str], set[str]]:
    """Return the names that the guide lists as missing: prefixes of names of modules, and single names."""
    modules, names = [], set()
    for line in GUIDE.read_text().partition("## Every other name")[2].partition("\n## ")[0].splitlines():
        if not line.startswith("| `"):
            continue
        first, *others = re.findall(r"`([^`]+)`", line.split("|")[1])
        if ": " in line.split("|")[1]:
            names |= {f"{first}.{name}" for name in others}
        else:
            modules += [first, *others]
    return modules, names


def shown(made: Call) -> str:
    """Return a callable's parameters without `self`: those that may be left out end with `=`, stars are as in Python.

    Raises:
        ValueError: the interpreter does not know them.
    """
    names: list[str] = []
    for parameter in inspect.signature(made).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not any(name.startswith("*") for name in names):
            names.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        names.append(f"{stars}{parameter.name}{'' if parameter.default is parameter.empty else '='}")
    return ", ".join(names)


def bound(owner: type, name: str) -> Call | None:
    """Return a method of a class with its first argument bound; None if the name is no function's."""
    value = inspect.getattr_static(owner, name)
    made = getattr(value, "__func__", value)
    if not inspect.isfunction(made):
        return None
    return made if isinstance(value, staticmethod) else made.__get__(owner)


def callables(module: str, names: list[str]) -> Iterator[tuple[str, Call]]:
    """Generate the name and the object of each class, its public methods, and each function of dragon in a module."""
    here = importlib.import_module(module)
    for name in names:
        found = getattr(here, name, None)
        if not callable(found) or not getattr(found, "__module__", "").startswith("dragon"):
            continue
        if inspect.isclass(found) and issubclass(found, BaseException | enum.Enum):
            continue
        yield f"{module}.{name}", found
        for method in dir(found) if inspect.isclass(found) else ():
            made = None if method.startswith("_") else bound(found, method)
            if made and made.__module__.startswith("dragon"):
                yield f"{module}.{name}.{method}", made


def main() -> None:
    absent, missing = listed()
    recorded = set()
    for line in NAMES.read_text().splitlines()[1:]:
        module, _, defined = line.partition(":")
        if any(module == known or module.startswith(f"{known}.") for known in absent):
            continue
        names = [name for name in defined.split() if not {f"{module}.{name}", f"{module}.*"} & missing]
        if module == "dragon.workflows.batch.batch":  # its other names are messages
            names = ["Batch", "Function", "Job"]
        with contextlib.suppress(ImportError):
            for name, made in callables(module, names):
                with contextlib.suppress(ValueError):
                    recorded.add(f"{name}({shown(made)})")
    print(f"# Parameters of the callables of dragonhpc {sys.modules['dragon'].__version__}; see signatures.py.")
    print(*sorted(recorded), sep="\n")


if __name__ == "__main__":
    main()
