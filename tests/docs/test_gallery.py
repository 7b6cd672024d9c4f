"""The programs of the gallery, and the output that it shows for them on one node and on two."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from website.gallery import Program, programs

from conftest import Site

ROOT = Path(__file__).parents[2]
PROGRAMS = list(programs(ROOT))
# They have more lines where there are more nodes, or lines whose order is open.
ANY_ORDER = {"3_dragon_dictionary.py", "generator_consumer.py"}


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.path.stem for program in PROGRAMS])
@pytest.mark.parametrize("nodes", [1, 2])
def test_each_program_prints_the_shown_output(site: Site, program: Program, nodes: int) -> None:
    for module in ("numpy", "matplotlib", "torch"):
        if re.search(rf"^\s*(import|from) {module}\b", program.code, re.MULTILINE):
            pytest.importorskip(module)
    done = site.dragon(*(["--nodes", str(nodes)] if nodes > 1 else []), program.path)
    assert done.returncode == 0, done.stderr
    if program.path.name in ANY_ORDER:
        for line in set(program.output.splitlines()):
            assert re.search(f"^{pattern(line)}$", done.stdout, re.MULTILINE), done.stdout
    else:
        assert re.fullmatch(pattern(program.output), done.stdout), done.stdout
    if program.picture:
        drawn = site.folder / program.picture.name
        assert drawn.read_bytes().startswith(b"\x89PNG")


def pattern(shown: str) -> str:
    """Return a regular expression for an output in which `…` matches anything within a line."""
    return ".*".join(map(re.escape, shown.split("…")))


def test_the_gallery_has_all_programs_and_outputs() -> None:
    folder = ROOT / "examples" / "gallery"
    shown = {program.path.name for program in PROGRAMS}
    assert {path.name for path in folder.glob("*.py")} <= shown
    assert {path.stem for path in [*folder.glob("*.out"), *folder.glob("*.png")]} <= {Path(name).stem for name in shown}
    assert len(PROGRAMS) >= 25
    titles = [program.title for program in PROGRAMS]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.path.stem for program in PROGRAMS])
def test_each_program_is_short_and_has_a_description(program: Program) -> None:
    if program.path.parent.name == "gallery":
        assert program.about
        assert len(program.code.splitlines()) <= 40
