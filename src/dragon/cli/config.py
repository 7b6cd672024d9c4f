"""`dragon-config`: settings for later runs of this user.

Few of the settings of other implementations have an effect here, because nothing is compiled against libraries of the
machine. All are accepted, so that scripts work, and those without effect are answered with a line on stderr.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import dragon
from dragon.commands import Parser, end_with, explained
from dragon.infrastructure import configuration

_KEPT = {
    "backend_mpiexec_override": "the command that starts agents in a PBS job; {nnodes} and {nodelist} are filled in",
    "tcp_runtime": "send bulk data over TCP, even if UCX is available",
}
# Options, and what is used instead.
_UNUSED = {
    "ofi-include ofi-build-lib ofi-runtime-lib": "libfabric is not used; bulk data is sent over TCP, or UCX with ucxx",
    "ucx-include ucx-build-lib ucx-runtime-lib": "UCX is that of the ucxx wheel (pip install 'dragon-runtime[rdma]')",
    "pmix-include mpi-include": "nothing is compiled against MPI; the one that a program brings is used",
    "cuda-include cuda-runtime-lib cuda-runtime-libname": "the CUDA that a program brings is used",
    "hip-include hip-runtime-lib hip-runtime-libname": "the HIP that a program brings is used",
    "ze-include ze-runtime-lib ze-runtime-libname": "the Level Zero that a program brings is used",
    "netconfig-mpiexec-override": "`dragon-network-config` asks the agents, which --backend-mpiexec-override starts",
}


def parser() -> argparse.ArgumentParser:
    result = Parser(prog="dragon-config", description="Set what later runs of this user use.")
    result.add_argument("-c", "--clean", action="store_true", help="remove all settings")
    result.add_argument("--config-file", type=Path, metavar="FILE", help="instead of ~/.config/dragon, where runs look")
    result.add_argument("-s", "--serialize", action="store_true", help="print all settings, as JSON on one line")
    result.add_argument("-g", "--get", metavar="KEY", help="print one value")
    shown = result.add_mutually_exclusive_group()
    shown.add_argument("-b", "--base-directory", action="store_true", help="print where the package is installed")
    for short, name in (("-l", "linker-options"), ("-o", "compiler-options"), ("-e", "explicit-compiler-options")):
        shown.add_argument(short, f"--{name}", dest="build", action="store_true", help=argparse.SUPPRESS)
    commands = result.add_subparsers(dest="command")
    add = commands.add_parser("add", help="add settings")
    for names in _UNUSED:
        for name in names.split():
            add.add_argument(f"--{name}", metavar="VALUE", help=argparse.SUPPRESS)
    add.add_argument("--backend-mpiexec-override", metavar="CMD", help=_KEPT["backend_mpiexec_override"])
    add.add_argument("--tcp-runtime", action="store_const", const="1", help=_KEPT["tcp_runtime"])
    test = commands.add_parser("test", help="accepted, without effect")
    for name in ("cray-mpich", "open-mpi", "anl-mpich"):
        test.add_argument(f"--{name}", metavar="DIR")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    return explained("dragon-config", lambda: _configure(arguments, arguments.config_file), ValueError)


def _configure(arguments: argparse.Namespace, file: Path | None) -> int:
    if arguments.clean:
        (file or configuration.default_path()).unlink(missing_ok=True)
    if arguments.command == "add":
        _add(arguments, file)
    if arguments.command == "test":
        _tell("test", "the tests of MPI take the one in PATH")
    return _show(arguments, configuration.read(file))


def _add(arguments: argparse.Namespace, file: Path | None) -> None:
    given = {key: value for key, value in vars(arguments).items() if value is not None}
    unknown = set(re.findall(r"\{(\w*)\}", given.get("backend_mpiexec_override", ""))) - {"nnodes", "nodelist"}
    if unknown:
        raise ValueError(f"--backend-mpiexec-override: {{{min(unknown)}}} is neither {{nnodes}} nor {{nodelist}}")
    kept = {key: given[key] for key in _KEPT if key in given}
    if kept:
        configuration.write({**configuration.read(file), **kept}, file)
    for names, instead in _UNUSED.items():
        for name in names.split():
            if name.replace("-", "_") in given:
                _tell(f"--{name}", instead)


def _show(arguments: argparse.Namespace, kept: dict[str, str]) -> int:
    if arguments.build:
        _tell("compiler and linker options", "there is no C interface to compile against; Python is the only one")
    if arguments.base_directory:
        print(Path(dragon.__file__).parent)
    if arguments.serialize:
        print(json.dumps(kept))
    if arguments.get is not None:
        key = arguments.get.replace("-", "_")
        if key not in kept:
            raise ValueError(f"{arguments.get!r} is not set; set are: {', '.join(sorted(kept)) or 'none'}")
        print(kept[key])
    return 0


def _tell(what: str, instead: str) -> None:
    print(f"dragon-config: {what}: {instead}", file=sys.stderr)


def run_and_exit() -> None:
    end_with("dragon-config", main)
