"""`dragon completion`: prints a script with which a shell completes this command."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from dragon.cli import main as command
from dragon.commands import Parser
from dragon.completion import parser as parser_of
from dragon.completion import print_script


def parser() -> argparse.ArgumentParser:
    return parser_of("dragon")


def main(words: Sequence[str]) -> int:
    return print_script("dragon", command.options(), _commands, words)


def _commands() -> dict[str, argparse.ArgumentParser]:
    found = {name: importlib.import_module(f"dragon.cli.{name}").parser() for name in command.COMMANDS}
    plan = Parser(parents=[command.parser()], add_help=False)
    plan.description = "Run a program, and print which process ran where."
    plan.add_argument("--json", action="store_true", help="print JSON")
    k8s = Parser(description="A Kubernetes job that runs a program.")
    manifest = importlib.import_module("dragon.cli.k8s").parser()
    kinds = k8s.add_subparsers(metavar="COMMAND")
    kinds.add_parser("manifest", parents=[manifest], add_help=False, help="print its manifest")
    return {"run": command.parser(), "plan": plan, "k8s": k8s, **found}
