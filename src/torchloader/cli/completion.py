"""`torchloader completion`: prints a script with which a shell completes this command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from dragon.completion import parser as parser_of
from dragon.completion import print_script
from torchloader.cli import main as command


def parser() -> argparse.ArgumentParser:
    return parser_of("torchloader")


def main(words: Sequence[str]) -> int:
    return print_script("torchloader", command.options(), _commands, words)


def _commands() -> dict[str, argparse.ArgumentParser]:
    return {name: command.parser_of(name) for name in command.COMMANDS}
