"""The Python blocks and links of the guides and of the pages at the root, such as the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conftest import Site
from peers.mpi import Mpi, for_own_mpi4py

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


def test_the_mpi_program_of_the_comparison_runs_with_two_ranks(site: Site, mpich: Mpi) -> None:
    (block,) = [block for name, block in blocks() if "comparison" in name and "from mpi4py" in block]
    done = site.run(mpich.folder / "mpiexec", "-n", "2", mpich.python, site.write(block))
    assert (done.returncode, done.stdout) == (0, "1229\n"), done.stderr


def test_the_targets_of_links_exist() -> None:
    for page in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"
