"""Show signatures as a caller reads them: constants by their value, without private names and parameters."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, TypeVar

import griffe

if TYPE_CHECKING:
    from collections.abc import Iterator

_Member = TypeVar("_Member", griffe.Function, griffe.Attribute)
_DEPTH = 4  # an alias may refer to other aliases


class PlainSignatures(griffe.Extension):
    """Rewrite the signatures of a package once it is loaded, for mkdocstrings and for llms-full.txt."""

    def on_package(self, *, pkg: griffe.Module, **options: object) -> None:
        for function in _members(pkg, griffe.Function):
            shown = [_plain(parameter) for parameter in function.parameters if not _is_private(parameter.name)]
            function.parameters, function.returns = griffe.Parameters(*shown), _resolved(function.returns)
        # Last, because functions are shown with the values of private names.
        for attribute in _members(pkg, griffe.Attribute):
            attribute.annotation = _resolved(attribute.annotation)
            if isinstance(attribute.value, griffe.Expr):
                attribute.value = None  # how the value is computed does not concern a caller


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _members(parent: griffe.Module | griffe.Class, kind: type[_Member]) -> Iterator[_Member]:
    """Return all members of a kind below a module or class."""
    for member in list(parent.members.values()):
        if isinstance(member, kind):
            yield member
        elif isinstance(member, griffe.Module | griffe.Class):
            yield from _members(member, kind)


def _plain(parameter: griffe.Parameter) -> griffe.Parameter:
    parameter.annotation = _resolved(parameter.annotation)
    default = _resolved(parameter.default)
    parameter.default = "..." if isinstance(default, griffe.ExprName) and _is_private(default.name) else default
    return parameter


def _resolved(expression: str | griffe.Expr | None, depth: int = _DEPTH) -> str | griffe.Expr | None:
    """Return the expression with private names replaced by what they stand for."""
    if not isinstance(expression, griffe.Expr) or depth == 0:
        return expression
    if isinstance(expression, griffe.ExprName):
        return _meaning(expression, depth) if _is_private(expression.name) else expression
    expression = copy.copy(expression)
    for field in dataclasses.fields(expression):
        value = getattr(expression, field.name)
        if isinstance(value, griffe.Expr):
            setattr(expression, field.name, _resolved(value, depth))
        elif isinstance(value, list | tuple):
            setattr(expression, field.name, [_resolved(part, depth) for part in value])
    return expression


def _meaning(name: griffe.ExprName, depth: int) -> str | griffe.Expr | None:
    module = name.parent
    while isinstance(module, griffe.Object) and not module.is_module:
        module = module.parent
    found = module.members.get(name.name) if isinstance(module, griffe.Module) else None
    if isinstance(found, griffe.Alias):
        found = found.final_target
    if isinstance(found, griffe.Class):
        return name.name.lstrip("_")
    if not isinstance(found, griffe.Attribute) or found.value is None:
        return name
    value = found.value
    if isinstance(value, griffe.ExprCall) and str(value.function).endswith(("TypeVar", "ParamSpec", "TypeVarTuple")):
        return name.name.lstrip("_")
    return _resolved(value, depth - 1)
