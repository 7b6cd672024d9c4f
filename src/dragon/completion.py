"""Scripts with which shells complete a command, made by shtab from the command's argument parsers.

shtab is imported only when a script is requested.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

from dragon.commands import Parser, need

__all__ = ["SHELLS", "parser", "print_script"]

SHELLS = ("bash", "zsh", "tcsh")
"""The shells for which there are scripts."""
_FILES = {"FILE", "PROG", "ARG", "WORKLOAD", "XML"}
_FOLDERS = {"DIR", "FOLDER", "RUN_FOLDER"}
_EPILOG = """\
to install the script:
  bash   mkdir -p ~/.local/share/bash-completion/completions
         {name} completion bash > ~/.local/share/bash-completion/completions/{name}
         or, without the package bash-completion, in ~/.bashrc: eval "$({name} completion bash)"
  zsh    {name} completion zsh > FOLDER/_{name}   for a FOLDER of $fpath, before compinit is called
  tcsh   {name} completion tcsh > ~/.{name}.tcsh   and in ~/.tcshrc: source ~/.{name}.tcsh

This needs shtab: pip install 'dragon-runtime[completion]'. The script itself needs nothing.
"""


def parser(name: str) -> argparse.ArgumentParser:
    """Return the argument parser of `NAME completion`."""
    result = Parser(
        prog=f"{name} completion",
        description=f"Print a script with which a shell completes `{name}`.",
        epilog=_EPILOG.format(name=name),
        allow_abbrev=False,
    )
    result.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    return result


def print_script(
    name: str,
    options: argparse.ArgumentParser,
    commands: Callable[[], Mapping[str, argparse.ArgumentParser]],
    words: Sequence[str],
) -> int:
    """Print a script that completes `name`, its options, its commands and their options. Returns the exit code.

    `options` is the parser of the command's own options, and is changed; `commands()` returns the parsers of its
    commands, and is called after `words` were parsed.
    """
    shell = parser(name).parse_args(list(words)).shell
    need("completion", "shtab", "completion")
    import shtab

    # One word is a command; further ones, which belong to a program, are completed as files.
    subparsers = options.add_subparsers(metavar="COMMAND")
    subparsers.nargs = None
    for command, its in commands().items():
        subparsers.add_parser(command, parents=[its], add_help=False, help=its.description)
    options.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARG")
    _complete_files(options, shtab.FILE, shtab.DIRECTORY)
    script = shtab.complete(options, shell)
    if shell == "bash":
        # A program is a file, which is not among the parser's choices.
        script += f"\ncomplete -o bashdefault -o default -F _shtab_{name} {name}"
    print(script)
    return 0


def _complete_files(of: argparse.ArgumentParser, files: object, folders: object) -> None:
    """Mark arguments that are files or folders, by their name in the help, in the way that shtab expects."""
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _complete_files(below, files, folders)
        elif action.metavar in _FILES or action.metavar in _FOLDERS:
            action.complete = files if action.metavar in _FILES else folders  # type: ignore[attr-defined]
