"""What the source of a main program says about importing it in other processes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

_NAME = "__name__"
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class MainSource:
    """The source of a main program.

    Attributes:
        is_guarded: whether the module decides by its `__name__` what it does, as in `if __name__ == "__main__":`, so
            that another process may import it. One that only passes its name on, for example to logging.getLogger(), or
            compares it in a function, does not.
        bound_here: the names that have their current values only in the program itself: those bound under such an `if`,
            and by `global` in functions.
    """

    def __init__(self, source: bytes) -> None:
        self.is_guarded = False
        self.bound_here: frozenset[str] = frozenset()
        if _NAME.encode() not in source:
            return
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):  # the file was changed since the start, or is not Python source
            return
        guards = [statement for statement in tree.body if isinstance(statement, ast.If) and _mentions(statement.test)]
        self.is_guarded = _decides(tree)
        if self.is_guarded:
            self.bound_here = frozenset(_bound(guards)).union(_globals(tree))


def _mentions(expression: ast.AST) -> bool:
    return any(isinstance(node, ast.Name) and node.id == _NAME for node in ast.walk(expression))


def _decides(node: ast.AST) -> bool:
    """Return whether a part of the module, outside of its functions and classes, decides something by its name."""
    if isinstance(node, (ast.If, ast.IfExp, ast.While)) and _mentions(node.test):
        return True
    if (isinstance(node, ast.Match) and _mentions(node.subject)) or (isinstance(node, ast.BoolOp) and _mentions(node)):
        return True
    return not isinstance(node, _SCOPES) and any(map(_decides, ast.iter_child_nodes(node)))


def _bound(statements: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that statements bind in their own scope."""
    for node in statements:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name
        if not isinstance(node, _SCOPES):
            yield from _bound(ast.iter_child_nodes(node))


def _globals(tree: ast.Module) -> Iterator[str]:
    """Yield the names that functions bind in the module."""
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            theirs = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
            yield from theirs.intersection(_bound(function.body)) if theirs else ()
