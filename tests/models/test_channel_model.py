"""The model of a channel is correct after every kill and stop, and is incorrect if its steps are in another order."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).with_name("channel.pml")

pytestmark = pytest.mark.skipif(
    not (shutil.which("spin") and shutil.which("cc")), reason="needs spin (package spin) and a C compiler"
)


def _search(folder: Path, *macros: str) -> str:
    """Return the output of an exhaustive search of the model."""

    def run(*command: str) -> str:
        done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("spin", *(f"-D{macro}" for macro in macros), "-a", str(MODEL))
    run("cc", "-O1", "-DSAFETY", "-o", "pan", "pan.c")
    said = run("./pan", "-m100000")
    assert "max search depth too small" not in said, said
    return said


def test_the_model_of_a_channel_has_no_error(tmp_path: Path) -> None:
    said = _search(tmp_path)
    assert "errors: 0" in said, said
    assert int(said.split(" states, stored")[0].split()[-1]) > 1000, said


@pytest.mark.parametrize(
    ("macro", "what"),
    [
        ("UNLINK_FIRST", "assertion violated"),
        ("DISOWN_FIRST", "assertion violated"),
        ("UNMARKED_REPAIR", "assertion violated"),
        ("NO_DEADLINE", "invalid end state"),
    ],
)
def test_the_model_of_a_channel_has_an_error_with_steps_in_another_order(macro: str, what: str, tmp_path: Path) -> None:
    said = _search(tmp_path, macro)
    assert "errors: 1" in said, said
    assert what in said, said
