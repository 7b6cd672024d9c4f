"""Every public name has a docstring."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Described = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def public_modules() -> list[Path]:
    """The modules of which no part of the name begins with an underscore."""
    modules = [path.relative_to(ROOT) for path in sorted((ROOT / "src").rglob("*.py"))]
    return [path for path in modules if not any(re.match("_(?!_init__)", part) for part in path.parts)]


def exported(module: ast.Module) -> set[str]:
    """The names in `__all__`."""
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return {name for name in ast.literal_eval(statement.value) if not name.startswith("_")}
    return set()


def described(module: ast.Module) -> Iterator[tuple[str, Described]]:
    """The public classes and functions that a module defines, and the public methods and properties of the classes."""
    public = exported(module)
    for thing in module.body:
        if not isinstance(thing, Described) or thing.name not in public or has_other_docstring(thing):
            continue
        yield thing.name, thing
        for member in thing.body if isinstance(thing, ast.ClassDef) else ():
            if isinstance(member, Described) and not member.name.startswith("_") and not has_other_docstring(member):
                yield f"{thing.name}.{member.name}", member


def has_other_docstring(thing: Described) -> bool:
    """Whether Python takes the docstring of another definition: of a property's getter, of what is overloaded."""
    decorators = [ast.unparse(decorator) for decorator in thing.decorator_list]
    return any(decorator.endswith((".setter", ".deleter", "overload")) for decorator in decorators)


def test_public_names_have_docstrings() -> None:
    names, missing = 0, []
    for path in public_modules():
        for name, thing in described(ast.parse((ROOT / path).read_text())):
            names += 1
            if not ast.get_docstring(thing):
                missing.append(f"{path}:{thing.lineno}: {name}")
    assert names > 2000
    assert missing == []


def test_names_of_the_reference_have_docstrings() -> None:
    """Constants too, and what classes inherit."""
    pytest.importorskip("griffe")
    reference = importlib.import_module("website.reference")
    missing = []
    for module in (module for topic in reference.topics(ROOT) for module in topic.modules):
        for name in module.names:
            found = reference.found(f"{module.name}.{name}", ROOT)
            if not found.docstring:
                missing.append(found.path)
            if found.is_class:
                members = found.all_members.items()
                public = [member for name, member in members if not name.startswith("_") and is_ours(member)]
                missing += [member.path for member in public if member.is_function and not member.docstring]
    assert missing == []


def is_ours(member: object) -> bool:
    """Whether a member of a class is defined in our packages."""
    return str(getattr(member, "canonical_path", "")).startswith(("dragon.", "torchloader."))
