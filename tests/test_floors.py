"""Imports follow the floors of docs/architecture.md, without cycles; no two test modules have the same name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import dragon

SOURCE = Path(__file__).parents[1] / "src"
GUIDE = SOURCE.parent / "docs" / "packages.md"
FLOORS = {
    "dragon": {
        "_core": 0,
        "control_groups": 0,
        "cpython": 1,
        "lazy_modules": 0,
        "commands": 0,
        "completion": 1,
        "cores": 1,
        "files": 1,
        "rc": 1,
        "signals": 1,
        "infrastructure": 2,
        "dlogging": 3,
        "dtypes": 3,
        "forking": 3,
        "runtime": 3,
        "claims": 4,
        "control": 4,
        "managed_memory": 4,
        "node_files": 4,
        "runs": 4,
        "serialization": 4,
        "shards": 4,
        "web": 4,
        "agent": 5,
        "channels": 6,
        "native": 5,
        "data": 6,
        "globalservices": 7,
        "mpbridge": 6,
        "telemetry": 6,
        "ai": 7,
        "aio": 7,
        "launcher": 7,
        "top": 7,
        "utils": 7,
        "workflows": 7,
        "cli": 8,
        "version": 9,
    },
    "torchloader": {
        "prediction": 1,
        "allocation": 2,
        "loader": 3,
        "scheduling": 3,
        "streaming": 4,
        "inputs": 4,
        "simulation": 5,
        "training": 5,
        "service": 6,
        "cli": 7,
    },
}
# The agent's wings; the modules beside them put them together.
WINGS = {
    "wire": 1,
    "objects": 2,
    "output": 2,
    "mpi": 3,
    "shards": 3,
    "processes": 4,
    "groups": 5,
    "services": 6,
    "telemetry": 7,
}
# They hand names on under the paths that programs know.
HANDS_ON = {"dragon/infrastructure/connection.py", "dragon/infrastructure/parameters.py"}


def imports(path: Path, package: str) -> set[str]:
    """Return the parts of its package that a module imports anywhere, except for its annotations."""
    found = set()
    depth = package.count(".") + 1
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
        names = []
        if isinstance(node, ast.ImportFrom):
            names = (
                [f"{package}.{alias.name}" for alias in node.names] if node.module == package else [node.module or ""]
            )
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[depth] for name in names if name.startswith(f"{package}.")}
    return found


MODULES = sorted(path for package in FLOORS for path in (SOURCE / package).rglob("*.py"))


def imports_up(path: Path) -> set[str]:
    """Return the parts of its package that a module imports and that are not on a floor below its own."""
    package, *rooms = path.relative_to(SOURCE).with_suffix("").parts
    if str(path.relative_to(SOURCE)) in HANDS_ON or rooms[0] in ("__init__", "__main__"):
        return set()
    floors = FLOORS[package]
    others = imports(path, package) - {rooms[0], "__version__"}
    return {name for name in others if floors[name] >= floors[rooms[0]]}


def test_modules_import_only_packages_of_lower_floors() -> None:
    """Packages of the same floor do not import each other."""
    assert len(MODULES) > 300
    assert {str(path.relative_to(SOURCE)): up for path in MODULES if (up := imports_up(path))} == {}


@pytest.mark.parametrize("wing", WINGS)
def test_wings_of_the_agent_import_only_lower_wings(wing: str) -> None:
    room = SOURCE / "dragon" / "agent" / wing
    for path in room.rglob("*.py") if room.is_dir() else [room.with_suffix(".py")]:
        for other in imports(path, "dragon.agent") - {wing}:
            assert WINGS.get(other, 8) < WINGS[wing], f"{path.relative_to(SOURCE)} imports {other}"


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def imported(path: Path) -> set[str]:
    """Return all modules that a module imports, except those whose names a package re-exports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return (found & NAMES) - {name_of(path)}


NAMES = {name_of(path) for path in MODULES}


def test_imports_have_no_cycle() -> None:
    order = TopologicalSorter({name_of(path): imported(path) for path in MODULES})
    order.prepare()  # raises CycleError, which names a circle


def test_torchloader_imports_only_public_names() -> None:
    """The guide lists the public modules, for every package on top of dragon."""
    public = {
        "dragon",
        *re.findall(r"`(dragon[\w.]*)`", GUIDE.read_text().partition("| names |")[2].partition("\n\n")[0]),
    }
    for path in (SOURCE / "torchloader").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            private = {name for name in names if name.split(".")[0] == "dragon"} - public
            assert not private, f"{path.relative_to(SOURCE)} imports {private}"
            if isinstance(node, ast.ImportFrom) and node.module == "dragon":
                assert {alias.name for alias in node.names} <= set(dragon.__all__)


def test_no_two_test_modules_have_the_same_name() -> None:
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_msgspec_is_imported_in_one_place() -> None:
    """An interrupt must not come while it is imported; see infrastructure/structs.py."""
    importing = [path for path in MODULES if path.is_relative_to(SOURCE / "dragon") and "msgspec" in roots(path)]
    assert importing == [SOURCE / "dragon/infrastructure/structs.py"]


def roots(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def test_ranks_exchange_no_objects() -> None:
    """The collectives for objects unpickle what comes over connections that authenticate nobody."""
    for path in (SOURCE / "torchloader").rglob("*.py"):
        used = re.findall(r"\bdist\.\w+_object\w*", path.read_text())
        assert used == [], f"{path.relative_to(SOURCE)} uses {used}"
