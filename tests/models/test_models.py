"""Models of protocols, which SPIN searches for invalid states: each has its own description."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

MODELS = Path(__file__).parent
DEEPEST = 500_000  # steps

pytestmark = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("gcc") is None,
    reason="spin and gcc are not both installed (packages spin, gcc)",
)


def look_through(folder: Path, model: str, *macros: str) -> str:
    """Return the output of SPIN, which has visited all states of the model or has found an error."""
    subprocess.run(
        ["spin", *macros, "-a", MODELS / f"{model}.pml"], cwd=folder, check=True, capture_output=True, timeout=60
    )
    # States of invalid ends are none here: a model of bounded length stops.
    build = ["gcc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"]
    subprocess.run(build, cwd=folder, check=True, timeout=120)
    done = subprocess.run(
        ["./pan", "-E", f"-m{DEEPEST}"], cwd=folder, check=True, capture_output=True, text=True, timeout=240
    )
    assert "search depth too small" not in done.stdout
    return done.stdout


@pytest.mark.parametrize(
    "model",
    [
        pytest.param("replication", id="acknowledged writes are kept, and read, after any loss"),
        pytest.param("wire", id="frames are handled once and in order, and losses are known, whatever breaks"),
    ],
)
def test_no_order_of_events_breaks_what_is_promised(tmp_path: Path, model: str) -> None:
    said = look_through(tmp_path, model)
    assert "errors: 0" in said, said
    assert "Search not completed" not in said


@pytest.mark.parametrize(
    ("model", "without"),
    [
        pytest.param("replication", "-DNO_EPOCHS", id="the check of the epoch"),
        pytest.param("replication", "-DALONE", id="the front end, to drop a holder"),
        pytest.param("replication", "-DNO_ROUND", id="a read's word of all holders"),
        pytest.param("wire", "-DNO_NUMBERS", id="numbers of frames"),
        pytest.param("wire", "-DNO_RESUME", id="resending"),
        pytest.param("wire", "-DNO_EPOCH", id="epochs of frames"),
        pytest.param("wire", "-DNO_KEPT", id="numbers of kept frames"),
        pytest.param("wire", "-DNO_REPEAT", id="acknowledging again"),
        pytest.param("wire", "-DANY_LINK", id="acknowledging over the connection in use"),
        pytest.param("wire", "-DONE_BEFORE", id="what was handled in several epochs"),
    ],
)
def test_the_model_has_an_error_without_a_required_part_of_the_protocol(
    tmp_path: Path, model: str, without: str
) -> None:
    assert "assertion violated" in look_through(tmp_path, model, without)
