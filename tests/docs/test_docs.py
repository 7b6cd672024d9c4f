"""The Python blocks, links and commands of the guides and of the pages at the root, such as the README."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from conftest import Site
from peers.mpi import for_own_mpi4py
from peers.slurm import Slurm

ROOT = Path(__file__).parents[2]


def blocks() -> list[tuple[str, str]]:
    found = []
    for page in [
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    ]:
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL), 1):
            found.append((f"{page.relative_to(ROOT)}-{number}", block))
    return found


@pytest.mark.parametrize("block", [b for _, b in blocks()], ids=[name for name, _ in blocks()])
def test_each_python_block_runs(site: Site, block: str) -> None:
    used = {
        module
        for module in ("torch", "mpi4py", "dask", "joblib", "parsl", "ray", "scipy")  # of no other use to most
        if re.search(rf"^\s*(import|from) {module}\b", block, re.MULTILINE)
    }
    for module in used:
        pytest.importorskip(module)
    environment = {"HOME": str(site.folder)} if "ray" in used else {}  # Ray writes a token there
    if "mpi4py" in used:
        environment |= for_own_mpi4py(site)
    done = site.python(block, env=environment)
    assert done.returncode == 0, done.stderr
    if shown := re.search(r"print\(.*\)  # (1229)$", block, re.MULTILINE):
        assert done.stdout == f"{shown[1]}\n"


def test_the_targets_of_links_exist() -> None:
    for page in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"


def sessions(page: str) -> list[tuple[str, str]]:
    """Return the commands of a page with their shown output, from `console` blocks."""
    text = (ROOT / "docs" / page).read_text()
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        found += re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    return found


@pytest.mark.parametrize("page", ["first_steps.md", "install.md"])
def test_the_commands_of_a_page_print_the_shown_output(site: Site, page: str) -> None:
    """Run the commands in the order of the page, in a folder with its programs; `…` matches anything."""
    follow(site, page, {})


def test_the_commands_of_the_slurm_tutorial_print_the_shown_output(site: Site, slurm: Slurm) -> None:
    follow(site, "tutorials/slurm.md", slurm.environment)


def follow(site: Site, page: str, environment: dict[str, str]) -> None:
    """Write the programs and scripts of a page, and run its commands."""
    text = (ROOT / "docs" / page).read_text()
    named = r"^`(\w+\.\w+)`:\n\n```(?:python|sh)\n(.*?)```"
    of_a_cell = r'^Path\("(\w+\.\w+)"\)\.write_text\("""\n(.*?)"""\)$'
    for pattern in (named, of_a_cell):
        for name, program in re.findall(pattern, text, re.DOTALL | re.MULTILINE):
            site.write(program, name)
    path = f"{Path(sys.executable).parent}:{environment.get('PATH', os.environ['PATH'])}"
    assert sessions(page)
    for command, shown in sessions(page):
        done = site.run("sh", "-c", command, env={**environment, "PATH": path})
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        expected = ".*".join(map(re.escape, shown.split("…")))
        assert re.fullmatch(expected, done.stdout, re.DOTALL), f"{command}\n{done.stdout}"
