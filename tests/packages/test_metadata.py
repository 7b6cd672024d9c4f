"""The metadata of the package is the same in all files that contain it."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import dragon

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "packaging"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "CMD"}


def parted(requirement: str) -> tuple[str, str]:
    """Return the name and the lowest version of a requirement."""
    name, version = requirement.split(">=")
    return name, version


NEEDED = dict(map(parted, PROJECT["dependencies"]))
NEEDED_TO_BUILD = dict(map(parted, PYPROJECT["build-system"]["requires"]))
PYTHON = PROJECT["requires-python"].removeprefix(">=")


def test_the_version_is_written_once() -> None:
    assert "version" not in PROJECT
    assert PYPROJECT["tool"]["scikit-build"]["metadata"]["version"]["input"] == "src/dragon/__init__.py"
    assert re.fullmatch(r"\d+\.\d+\.\d+", dragon.__version__)


def test_the_dependency_groups_have_the_requirements_of_the_extra() -> None:
    groups = PYPROJECT["dependency-groups"]
    extra = {each for each in PROJECT["optional-dependencies"]["test"] if not each.startswith("dragon-runtime[")}
    assert set(groups["check"]) | set(groups["test"]) == extra
    assert {each["include-group"] for each in groups["dev"]} == groups.keys() - {"dev"}


def test_groups_do_not_name_the_package() -> None:
    """`pip install --group` would search an index for the name if the package were not installed with it."""
    for group in PYPROJECT["dependency-groups"].values():
        assert not [each for each in group if "dragon" in str(each)]


def test_the_changelog_begins_with_unreleased_changes_or_this_version() -> None:
    headings = re.findall(r"^## \[?([^\]\s]+)\]?", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased" or headings[0] == dragon.__version__


def test_the_citation_has_the_metadata_of_the_project() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "type"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == dragon.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    assert PROJECT["authors"][0]["name"] in (ROOT / "LICENSE").read_text()


def logical_lines(text: str) -> Iterator[str]:
    """Return the lines of a Dockerfile without comments; lines continued with a backslash are joined."""
    without = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return filter(None, (line.strip() for line in without.replace("\\\n", " ").splitlines()))


def check_shell(program: str) -> None:
    done = subprocess.run(["sh", "-n"], input=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_dockerfile_is_valid() -> None:
    bases, sources = set(), set()
    for line in logical_lines((RECIPES / "Dockerfile").read_text()):
        instruction, rest = line.split(maxsplit=1)
        assert instruction in INSTRUCTIONS
        if instruction == "FROM":
            bases.add(rest.split()[0])
        if instruction == "COPY":
            sources |= set(rest.split()[:-1])
        if instruction == "RUN":
            check_shell(re.sub(r"--mount=\S+", "", rest))
    assert bases == {f"python:{PYTHON}-slim"}
    assert sources == set(sources_of_apptainer())


def sections() -> dict[str, str]:
    """Return the sections of the definition file; its header is the section with an empty name."""
    parts = re.split(r"^%(\w+)\n", (RECIPES / "apptainer.def").read_text(), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def sources_of_apptainer() -> list[str]:
    return [line.split()[0] for line in sections()["files"].splitlines() if line.strip()]


def test_the_definition_file_of_apptainer_is_valid() -> None:
    parts = sections()
    assert parts.keys() == {"", "files", "post", "test", "runscript"}
    header = [line for line in parts[""].splitlines() if line and not line.startswith("#")]
    assert header == ["Bootstrap: docker", f"From: python:{PYTHON}-slim"]
    for name in ("post", "test", "runscript"):
        check_shell(parts[name])


def test_images_contain_all_files_that_the_build_reads() -> None:
    sources = sources_of_apptainer()
    files = {each.partition("/")[0] for each in PROJECT["license-files"]}
    assert {PROJECT["readme"], *files, "pyproject.toml", "CMakeLists.txt", "src"} == set(sources)
    assert all((ROOT / source).exists() for source in sources)


def test_the_recipe_of_conda_has_the_metadata_of_the_project() -> None:
    recipe: dict[str, Any] = yaml.safe_load((RECIPES / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == dragon.__version__
    assert recipe["package"]["name"] == PROJECT["name"]
    assert recipe["about"]["license"] == PROJECT["license"]
    assert recipe["about"]["summary"] == PROJECT["description"]
    run = dict(parted(each.replace(" ", "")) for each in recipe["requirements"]["run"])
    assert run == {"python": PYTHON, **NEEDED}
    host = dict(parted(each.replace(" ", "")) for each in recipe["requirements"]["host"] if ">=" in each)
    assert host == NEEDED_TO_BUILD


def calls(name: str) -> list[ast.Call]:
    """Return the calls of one directive in the recipe of Spack."""
    tree = ast.parse((RECIPES / "spack" / "package.py").read_text())
    (recipe,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    found = [node.value for node in recipe.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    return [call for call in found if ast.unparse(call.func) == name]


def asked_of_spack(kind: str, when: str = "") -> dict[str, str]:
    """Return the packages of one kind that the recipe requires, with their lowest versions."""
    found = {}
    for call in calls("depends_on"):
        options = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
        name, _, version = ast.literal_eval(call.args[0]).partition("@")
        if kind in options["type"] and options.get("when", "") == when and name.startswith("py"):
            found[name.removeprefix("py-")] = version.removesuffix(":")
    return found


def test_the_recipe_of_spack_has_the_metadata_of_the_project() -> None:
    assert [ast.literal_eval(call.args[0]) for call in calls("version")] == [dragon.__version__]
    assert asked_of_spack("run") == {"python": PYTHON, **NEEDED}
    assert asked_of_spack("build") == {"python": PYTHON, **NEEDED_TO_BUILD}
    assert asked_of_spack("run", "+torch") == dict(map(parted, PROJECT["optional-dependencies"]["torch"]))


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_missing_headers_of_python_are_named(tmp_path: Path) -> None:
    missing = ["-D", f"Python_EXECUTABLE={sys.executable}", "-D", "Python_INCLUDE_DIR=/nonexistent"]
    done = subprocess.run(["cmake", "-S", ROOT, "-B", tmp_path, *missing], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "python3-dev on Debian and Ubuntu" in " ".join(done.stderr.split())


def test_installations_of_one_tree_do_not_share_a_folder() -> None:
    assert "build-dir" not in PYPROJECT["tool"]["scikit-build"]


def test_a_program_keeps_its_types(tmp_path: Path) -> None:
    program = Path(__file__).with_name("programs") / "typed.py"
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", tmp_path, program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
