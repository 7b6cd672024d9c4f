"""packaging/make_wheels.py: how it builds a wheel, with substitutes for the build programs, and its error messages."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "packaging" / "make_wheels.py"
SYSTEM = f"manylinux_2_17_{platform.machine()}"
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}.get(platform.machine(), "aarch64")
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}{'t' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''}"
# An interpreter whose `-m build` notes what it was told, and makes a wheel with the name that a file has.
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then exec {python} "$@"; fi
printf '%s\\n' "$CC" "$CMAKE_ARGS" "$SETUPTOOLS_EXT_SUFFIX" "$_PYTHON_HOST_PLATFORM" > {folder}/told
mkdir -p "$5" && touch "$5/$(cat {folder}/built)"
"""
AUDITWHEEL = """#!/bin/sh
mkdir -p "$3" && touch "$3/$(cat {folder}/repaired)"
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_wheels", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the substitutes."""
    (tmp_path / "out").mkdir()
    (tmp_path / "work").mkdir()
    for name, text in (("python", PYTHON), ("auditwheel", AUDITWHEEL)):
        (tmp_path / name).write_text(text.format(folder=tmp_path, python=sys.executable))
        (tmp_path / name).chmod(0o755)
    return tmp_path


def build(script: ModuleType, folder: Path, built: str, repaired: str, machine: str = platform.machine()) -> Path:
    """Build a wheel with the script; the substitutes provide its files."""
    (folder / "built").write_text(f"dragon-1-{built}.whl")
    (folder / "repaired").write_text(f"dragon-1-{repaired}.whl")
    options = argparse.Namespace(work=folder / "work", out=folder / "out", glibc="2.17")
    made: Path = script.wheel(folder, folder, machine, folder / "source", options)
    return made


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


def test_a_missing_interpreter_is_an_error() -> None:
    done = run("python9.9")
    assert (done.returncode, done.stdout) == (2, "")
    assert "argument PYTHON: there is no interpreter 'python9.9'" in done.stderr


def test_the_help_describes_the_wheel_of_a_free_threaded_interpreter() -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "free-threaded interpreter for that version alone" in " ".join(done.stdout.split())


def test_an_unknown_processor_is_refused() -> None:
    done = run("--machine", "vax")
    assert (done.returncode, done.stdout) == (2, "")
    assert "invalid choice: 'vax'" in done.stderr


@pytest.mark.parametrize(
    ("tag", "tags"),
    [
        ("cp311", "cp311-cp311"),
        ("cp312", "cp312-abi3"),
        ("cp315", "cp312-abi3"),
        ("cp313t", "cp313-cp313t"),
        ("cp314t", "cp314-cp314t"),
    ],
)
def test_a_wheel_is_for_later_versions_unless_it_is_free_threaded(script: ModuleType, tag: str, tags: str) -> None:
    assert script.tags_of_wheel(tag) == tags


def test_the_tag_and_the_suffix_of_an_interpreter_are_determined(script: ModuleType) -> None:
    assert script.tag_of(Path(sys.executable)) == (TAG, sysconfig.get_config_var("EXT_SUFFIX"))


def test_the_error_for_a_failed_command_has_its_output(script: ModuleType) -> None:
    with pytest.raises(script.WheelError, match=r"exited with code 3:\nout\nerror\n"):
        script.run("sh", "-c", "echo out; echo error >&2; exit 3")


def test_an_interpreter_without_headers_is_an_error_that_names_it(script: ModuleType, folder: Path) -> None:
    python = folder / "bare"
    python.write_text(f"#!/bin/sh\necho {folder}/include\n")
    python.chmod(0o755)
    with pytest.raises(script.WheelError, match=f"{python} has no headers in {folder}/include: install its devel"):
        script.headers(python, "cp399", argparse.Namespace(work=folder))


def test_a_repaired_wheel_is_kept(script: ModuleType, folder: Path) -> None:
    tags = script.tags_of_wheel(TAG)
    made = build(script, folder, f"{tags}-linux_{platform.machine()}", f"{tags}-{SYSTEM}")
    assert made == folder / "out" / f"dragon-1-{tags}-{SYSTEM}.whl"
    assert made.exists()
    compiler, arguments, suffix, system = (folder / "told").read_text().splitlines()
    assert f"ziglang cc -target {platform.machine()}-linux-gnu.2.17" in Path(compiler).read_text()
    assert f"-DPython_INCLUDE_DIR={folder}/work/include/{TAG}" in arguments
    assert "CMAKE_SYSTEM_PROCESSOR" not in arguments
    assert (suffix, system) == (sysconfig.get_config_var("EXT_SUFFIX"), f"linux-{platform.machine()}")


def test_a_wheel_for_the_other_processor_is_cross_compiled(script: ModuleType, folder: Path) -> None:
    tags = script.tags_of_wheel(TAG)
    build(script, folder, f"{tags}-linux_{OTHER}", f"{tags}-manylinux_2_17_{OTHER}", OTHER)
    compiler, arguments, suffix, system = (folder / "told").read_text().splitlines()
    assert f"-target {OTHER}-linux-gnu.2.17" in Path(compiler).read_text()
    assert f"-DCMAKE_SYSTEM_PROCESSOR={OTHER}" in arguments
    assert OTHER in suffix
    assert system == f"linux-{OTHER}"


def test_a_wheel_for_another_version_is_refused(script: ModuleType, folder: Path) -> None:
    built = f"cp399-cp399-linux_{platform.machine()}"
    with pytest.raises(script.WheelError, match=f"{built}.whl is not for {script.tags_of_wheel(TAG)}"):
        build(script, folder, built, "")


def test_a_wheel_that_needs_a_later_c_library_is_refused(script: ModuleType, folder: Path) -> None:
    tags = script.tags_of_wheel(TAG)
    repaired = f"{tags}-manylinux_2_34_{platform.machine()}"
    with pytest.raises(script.WheelError, match=f"{repaired}.whl is no {SYSTEM}: `auditwheel show "):
        build(script, folder, f"{tags}-linux_{platform.machine()}", repaired)
    assert list((folder / "out").iterdir()) == []
