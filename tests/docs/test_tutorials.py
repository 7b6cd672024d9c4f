"""The tutorials as the notebooks that the site offers, and the output that their pages show."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from website import notebooks

from conftest import Site
from peers.mpi import for_own_mpi4py

TUTORIALS = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.md"))
RUNNER = """
import json, sys
import nbclient, nbformat

notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
print(json.dumps(["".join(out.text for out in cell.outputs if out.get("name") == "stdout") for cell in cells]))
"""


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_each_tutorial_prints_the_output_of_its_page(page: Path, site: Site) -> None:
    for library in ("nbclient", "nbformat", "ipykernel", "matplotlib"):
        pytest.importorskip(library)
    for library in ("torch", "optuna"):
        if f"import {library}\n" in page.read_text():
            pytest.importorskip(library)
    path = site.folder / "tutorial.ipynb"
    path.write_text(notebooks.notebook(page.read_text()))
    libraries = for_own_mpi4py(site) if "from mpi4py import" in page.read_text() else {}
    commands = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment = {
        **libraries,
        **commands,
        "IPYTHONDIR": str(site.folder / "i"),
        "JUPYTER_RUNTIME_DIR": str(site.folder / "j"),
    }
    done = site.run(sys.executable, site.write(RUNNER), path, env=environment, timeout=180)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == notebooks.outputs(page.read_text())
    site.assert_nothing_left()
