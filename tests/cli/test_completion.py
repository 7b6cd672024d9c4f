"""`dragon completion` and `torchloader completion`: scripts that complete command lines in real shells."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Site
from dragon.cli import main as dragon_command
from torchloader.cli import main as torchloader_command

pytest.importorskip("shtab")

# As bash calls it where Tab is pressed after the words.
COMPLETE = """
source {script}
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
"$(complete -p "$1" | sed 's/.*-F \\([^ ]*\\) .*/\\1/')"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    for command in ("dragon", "torchloader"):
        for shell in ("bash", "zsh", "tcsh"):
            made = subprocess.run(
                [sys.executable, "-m", command, "completion", shell], capture_output=True, text=True, check=True
            )
            (folder / f"{command}.{shell}").write_text(made.stdout)
    return folder


def completed(scripts: Path, folder: Path, *words: str) -> set[str]:
    """Return the completions of bash for the last word."""
    program = COMPLETE.format(script=scripts / f"{words[0]}.bash")
    done = subprocess.run(
        ["bash", "--norc", "-c", program, "bash", *words], capture_output=True, text=True, cwd=folder, check=True
    )
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize("command", ["dragon", "torchloader"])
@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_the_script_has_no_syntax_errors(scripts: Path, command: str, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = scripts / f"{command}.{shell}"
    done = subprocess.run([shell, "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dragon do", {"doctor"}),
        ("dragon --bas", {"--basic-label"}),
        ("dragon --nodes 2 das", {"dashboard"}),
        ("dragon ddict ", {"ls", "stat", "dump", "load"}),
        ("dragon k8s manifest --im", {"--image"}),
        ("dragon plan --js", {"--json"}),
        ("dragon run --no-l", {"--no-label"}),
        ("dragon completion ", {"bash", "zsh", "tcsh"}),
        ("dragon train.py inp", {"input.dat"}),
        ("dragon run tra", {"train.py"}),
        ("dragon --hostfile inp", {"input.dat"}),
        ("dragon trace rec", {"recorded"}),
        ("torchloader res", {"resume", "resize"}),
        ("torchloader run --device ", {"cuda", "cpu"}),
        ("torchloader submit inp", {"input.dat"}),
    ],
)
def test_bash_completes_commands_options_and_files(
    scripts: Path, tmp_path: Path, line: str, expected: set[str]
) -> None:
    for name in ("input.dat", "train.py"):
        (tmp_path / name).touch()
    (tmp_path / "recorded").mkdir()
    assert completed(scripts, tmp_path, *line.split(" ")) == expected


def test_bash_completes_all_commands_of_the_help(scripts: Path, tmp_path: Path) -> None:
    for parser in (dragon_command.parser(), torchloader_command.parser()):
        told = set(re.findall(rf"^  {parser.prog} ([a-z0-9]+) ", parser.epilog or "", re.MULTILINE))
        assert told, parser.prog
        assert told <= completed(scripts, tmp_path, parser.prog, "")


def test_bash_falls_back_to_files_for_a_program(scripts: Path) -> None:
    """Check the default completion: a program is a file, which the parser does not list."""
    done = subprocess.run(
        ["bash", "--norc", "-c", f"source {scripts / 'dragon.bash'}; complete -p dragon"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "-o default" in done.stdout


def test_an_error_names_the_missing_package(site: Site) -> None:
    program = "import sys; sys.modules['shtab'] = None; from dragon.cli.main import main; sys.exit(main({}))"
    done = site.python(program.format(["completion", "bash"]))
    assert done.returncode == 1
    assert done.stderr == "dragon completion: completion needs shtab: pip install 'dragon-runtime[completion]'\n"


def test_unknown_shells_are_refused(site: Site) -> None:
    done = site.dragon("completion", "cmd")
    assert done.returncode == 2
    assert "invalid choice: 'cmd'" in done.stderr


def test_other_commands_do_not_import_shtab(site: Site) -> None:
    done = site.python("import sys, dragon.cli.main, torchloader.cli.main; sys.exit('shtab' in sys.modules)")
    assert done.returncode == 0
