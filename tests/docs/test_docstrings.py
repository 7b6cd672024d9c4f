"""The docstrings of public names, and the examples of public classes."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Site

ROOT = Path(__file__).parents[2]
# What is run in one program, and what it needs. That of dragon.workflows.runtime may belong to no run at its beginning.
PACKAGES = {
    "dragon.native": "dragon",
    "dragon.data": "dragon",
    "dragon.telemetry": "pyarrow",
    "dragon.workflows": "dragon",
    "dragon.workflows.runtime": "dragon",
    "torchloader": "torch",
}
# Its arguments are modules. A class that nobody makes, a base class or one that is not offered, has no example.
EXAMPLES = """
import doctest, importlib, inspect, sys

NOT_MADE = {"CheckpointPersister", "DAOSCheckpointPersister", "DragonParslExecutor"}

if __name__ == "__main__":
    classes = {}
    for name in sys.argv[1:]:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue  # what it adapts is not installed
        for thing in (getattr(module, name) for name in module.__all__):
            ours = inspect.isclass(thing) and thing.__module__.startswith(("dragon.", "torchloader."))
            if ours and not issubclass(thing, BaseException):
                classes[thing.__name__] = thing
    for name, thing in classes.items():
        test = doctest.DocTestParser().get_doctest(thing.__doc__, {"__name__": "__main__"}, name, None, None)
        if bool(test.examples) == (name in NOT_MADE):
            print(name, "has an example" if test.examples else "has no example")
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    print(bool(classes))
"""
Described = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def public_modules() -> list[Path]:
    """Return the modules without a part of the name that begins with an underscore; internal ones have no `__all__`."""
    modules = [path.relative_to(ROOT) for path in sorted((ROOT / "src").rglob("*.py"))]
    return [path for path in modules if not any(re.match("_(?!_init__)", part) for part in path.parts)]


def exported(module: ast.Module) -> set[str]:
    """Return the names in `__all__`."""
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return {name for name in ast.literal_eval(statement.value) if not name.startswith("_")}
    return set()


def described(module: ast.Module) -> Iterator[tuple[str, Described]]:
    """Yield the public classes and functions of a module, and the public methods and properties of its classes."""
    public = exported(module)
    for thing in module.body:
        if not isinstance(thing, Described) or thing.name not in public or has_other_docstring(thing):
            continue
        yield thing.name, thing
        for member in thing.body if isinstance(thing, ast.ClassDef) else ():
            if isinstance(member, Described) and not member.name.startswith("_") and not has_other_docstring(member):
                yield f"{thing.name}.{member.name}", member


def has_other_docstring(thing: Described) -> bool:
    """Return whether Python uses the docstring of another definition: of a getter or of an overloaded function."""
    decorators = [ast.unparse(decorator) for decorator in thing.decorator_list]
    return any(decorator.endswith((".setter", ".deleter", "overload")) for decorator in decorators)


def test_public_names_have_docstrings() -> None:
    names, missing = 0, []
    for path in public_modules():
        for name, thing in described(ast.parse((ROOT / path).read_text())):
            names += 1
            if not ast.get_docstring(thing):
                missing.append(f"{path}:{thing.lineno}: {name}")
    assert names > 450
    assert missing == []


def test_names_of_the_reference_have_docstrings() -> None:
    """Include constants and inherited members of classes."""
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
    """Return whether a member of a class is defined in our packages."""
    return str(getattr(member, "canonical_path", "")).startswith(("dragon.", "torchloader."))


@pytest.mark.parametrize("package", PACKAGES)
def test_examples_of_public_classes_print_the_shown_output(site: Site, package: str) -> None:
    pytest.importorskip(PACKAGES[package])
    tables = tomllib.loads((ROOT / "website" / "reference.toml").read_text())["topic"]
    modules = [module for table in tables for module in table["modules"]]
    done = site.python(EXAMPLES, *(module for module in modules if package_of(module) == package))
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stdout + done.stderr


def package_of(module: str) -> str:
    """Return the longest name of a package that contains the module or is the module."""
    return max((name for name in PACKAGES if f"{module}.".startswith(f"{name}.")), key=len, default="")
