"""The page of the commands and their options, from what each prints with --help."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

_WIDTH = "100"  # columns
_OF_ITS_OWN = {
    "dragon-config": "dragon.cli.config",
    "dragon-network-config": "dragon.cli.network_config",
    "dragon-network-ifaddrs": "dragon.cli.ifaddrs",
}


def page() -> str:
    """Return a page with a section for each command.

    Raises:
        SystemExit: the package is not installed.
    """
    try:
        dragon = importlib.import_module("dragon.cli.main")
        torchloader = importlib.import_module("torchloader.cli.main")
    except ImportError as error:
        raise SystemExit(f"the commands are asked for their options, so install the package first: {error}") from error
    os.environ["COLUMNS"] = _WIDTH
    helps = {"dragon": _help("dragon.cli.main")}
    helps |= {f"dragon {name}": _help(f"dragon.cli.{name}") for name in (*dragon.COMMANDS, "k8s")}
    helps["dragon plan"] = _help_of_plan()
    helps |= {name: _help(module) for name, module in _OF_ITS_OWN.items()}
    helps["torchloader"] = _help("torchloader.cli.main")
    helps |= {f"torchloader {name}": torchloader.parser_of(name).format_help() for name in torchloader.COMMANDS}
    text = ["# Reference: Commands", "The options of every command, as `--help` prints them."]
    text += [f"## {name}\n\n```text\n{shown}```" for name, shown in helps.items()]
    return "\n\n".join(text) + "\n"


def _help(module: str) -> str:
    parser: argparse.ArgumentParser = importlib.import_module(module).parser()
    return parser.format_help()


def _help_of_plan() -> str:
    """Return what `dragon plan --help` prints. Its options are those of `dragon`, so it has no parser of its own."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        importlib.import_module("dragon.cli.plan").main(["--help"], lambda words: 0)
    return printed.getvalue()
