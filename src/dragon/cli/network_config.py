"""`dragon-network-config`: prints the nodes of an allocation or a list of hosts, for `dragon --network-config`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragon.cli import machine
from dragon.commands import Parser, end_with, worded
from dragon.infrastructure import variables
from dragon.infrastructure.errors import DragonError
from dragon.launcher.choice import Wanted, choose


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = Parser(
        prog="dragon-network-config",
        description="Start an agent on each node of the allocation or the list, and print how each describes itself.",
    )
    nodes = result.add_argument_group("nodes")
    machine.add_count_and_shape(nodes)
    machine.add_hosts(nodes)
    machine.add_network(nodes)
    result.add_argument(
        "--primary", default="", metavar="HOST", help="the node of the head process (default: the first)"
    )
    result.add_argument(
        "--join-timeout",
        type=machine.seconds,
        default=60.0,
        metavar="S",
        help="seconds within which nodes must join (60)",
    )
    result.add_argument("-l", "--log", metavar="LEVEL", help="what is logged on stderr (default WARNING)")
    result.add_argument("-y", "--output-to-yaml", action="store_true", help="write a file named after the launcher")
    result.add_argument("-j", "--output-to-json", action="store_true", help="write a file named after the launcher")
    result.add_argument("--no-stdout", action="store_true", help="print nothing")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    arguments = parser().parse_args(argv)
    if arguments.log:
        os.environ[variables.LOG_LEVEL] = arguments.log.upper()
    try:
        name, nodes = _nodes(arguments)
        _write(arguments, name, nodes)
    except (DragonError, OSError, ValueError) as error:
        print(f"dragon-network-config: {worded(error)}", file=sys.stderr)
        return 1
    if not arguments.no_stdout:
        print(json.dumps(nodes, indent=2))
    return 0


def _write(arguments: argparse.Namespace, name: str, nodes: dict[str, Any]) -> None:
    if arguments.output_to_yaml:
        import msgspec

        Path(f"{name}.yaml").write_bytes(msgspec.yaml.encode(nodes))
    if arguments.output_to_json:
        Path(f"{name}.json").write_text(json.dumps(nodes, indent=2) + "\n")


def _nodes(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    import uvloop

    from dragon.launcher.survey import as_configuration, survey

    launcher = choose(
        Wanted(
            wlm=arguments.wlm,
            nodes=arguments.nodes,
            hosts=machine.hosts(arguments),
            several=not arguments.nodes,
            cpus=arguments.cpus,
            gpus=arguments.gpus,
            ssh_options=machine.ssh_options(arguments),
            address=arguments.address,
        )
    )
    if launcher is None:
        raise ValueError("one node needs no configuration; give --nodes, --hostlist or --wlm, or use an allocation")
    members = uvloop.run(
        survey(launcher, arguments.network_prefix, arguments.port, arguments.join_timeout), debug=False
    )
    return launcher.name, as_configuration(members, launcher.nodes, arguments.primary)


def run_and_exit() -> None:
    """Run the command and exit: the entry point of `dragon-network-config`."""
    end_with("dragon-network-config", main)
