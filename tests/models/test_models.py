"""Models of protocols, which SPIN searches for invalid states: `replication.pml` has its own description."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).parent / "replication.pml"
DEEPEST = 500_000  # steps

pytestmark = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("gcc") is None,
    reason="spin and gcc are not both installed (packages spin, gcc)",
)


def look_through(folder: Path, *macros: str) -> str:
    """Return the output of SPIN, which has visited all states of the model or has found an error."""
    subprocess.run(["spin", *macros, "-a", MODEL], cwd=folder, check=True, capture_output=True, timeout=60)
    # States of invalid ends are none here: a model of bounded length stops.
    build = ["gcc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"]
    subprocess.run(build, cwd=folder, check=True, timeout=120)
    done = subprocess.run(
        ["./pan", "-E", f"-m{DEEPEST}"], cwd=folder, check=True, capture_output=True, text=True, timeout=240
    )
    assert "search depth too small" not in done.stdout
    return done.stdout


def test_acknowledged_writes_are_kept_and_read_after_any_loss(tmp_path: Path) -> None:
    said = look_through(tmp_path)
    assert "errors: 0" in said, said
    assert "Search not completed" not in said


@pytest.mark.parametrize(
    "without",
    [
        pytest.param("-DNO_EPOCHS", id="the check of the epoch"),
        pytest.param("-DALONE", id="the front end, to drop a holder"),
        pytest.param("-DNO_ROUND", id="a read's word of all holders"),
    ],
)
def test_the_model_has_an_error_without_a_required_part_of_the_protocol(tmp_path: Path, without: str) -> None:
    assert "assertion violated" in look_through(tmp_path, without)
