"""Imports go down the floors of docs/architecture.md, never up."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "dragon"
FLOORS = {
    "infrastructure": 1,
    "runtime": 2,
    "agent": 3,
    "ai": 4,
    "data": 4,
    "globalservices": 4,
    "native": 4,
    "mpbridge": 4,
    "telemetry": 4,
    "web": 2,
    "launcher": 5,
    "top": 5,
    "workflows": 5,
    "cli": 6,
}
HANDS_ON = {"infrastructure/connection.py"}


def imports(path: Path) -> set[str]:
    """The packages of ours that a module imports anywhere, but for the sake of its annotations."""
    found = set()
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("dragon.")}
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    relative = str(path.relative_to(PACKAGE))
    floor = FLOORS.get(relative.split("/", 1)[0], 7)
    if relative in HANDS_ON:
        pytest.skip("hands names on under the path that programs know")
    assert {name for name in imports(path) if FLOORS.get(name, 0) > floor} == set()
