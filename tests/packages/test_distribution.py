"""The source distribution builds without git, and the wheel that is built from it runs in an empty environment."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import dragon
from at_once import in_the_network_of_the_machine

pytest.importorskip("build")
pytestmark = pytest.mark.xdist_group("distribution")  # it is made once
ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "docs", "examples", "packaging", "plugins", "src", "tests", "website")


def left_out(folder: str, names: list[str]) -> list[str]:
    """Return the names in a folder that .gitignore excludes."""
    return [name for name in names if name == "__pycache__" or f"{folder}/{name}".endswith("/telemetry/data")]


def run(*command: str | Path, folder: Path | None = None) -> str:
    words = [*in_the_network_of_the_machine(), *map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, check=False)
    text = done.stdout + done.stderr
    if done.returncode and re.search("No matching distribution|Could not find a version|ConnectionError", text):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, text[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of a copy of the repository without git."""
    copy = tmp_path_factory.mktemp("copy") / "dragon"
    copy.mkdir()
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, copy)
    for name in (*FOLDERS, ".ci"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=left_out)
    (copy / ".editor").mkdir()
    (copy / ".editor" / "settings").touch()
    run(sys.executable, "-m", "build", "--sdist", "--outdir", copy.parent / "dist", copy)
    (made,) = (copy.parent / "dist").iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the unpacked source distribution."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder / "dist", unpacked)
    (made,) = (folder / "dist").iterdir()
    return made


def test_the_source_distribution_has_all_files_of_the_repository(source: Path) -> None:
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff", "LICENSE", "Makefile"} <= names
    assert {"src/dragon/py.typed", "src/core/arena.cpp", "tests/conftest.py", ".clang-format"} <= names
    assert not [name for name in names if ".editor" in name or name.endswith((".pyc", ".so"))]
    if (ROOT / ".git").exists() and shutil.which("git"):
        tracked = set(run("git", "ls-files", folder=ROOT).split())
        there = {name for name in tracked if (ROOT / name).exists()}
        assert there - names == set()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_wheel_from_the_source_distribution_runs_the_first_example(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        told = HeaderParser().parsestr(archive.read(metadata).decode())
    assert told["Version"] == dragon.__version__
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"dragon", "torchloader"}
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel)
    first = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    (tmp_path / "squares.py").write_text(first)
    expected = "[0, 1, 4, 9, 16, 25, 36, 49, 64, 81]\n"
    assert run(python, "squares.py", folder=tmp_path) == expected
    assert run(tmp_path / "empty" / "bin" / "dragon", "squares.py", folder=tmp_path) == expected
