"""Every Python block of the guides and of the pages at the root, such as the README, runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conftest import Site

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
def test_block_runs(site: Site, block: str) -> None:
    for module in ("torch", "mpi4py", "dask", "joblib", "parsl"):  # of no other use to most
        if re.search(rf"^\s*(import|from) {module}\b", block, re.MULTILINE):
            pytest.importorskip(module)
    done = site.python(block)
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere() -> None:
    for page in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"
