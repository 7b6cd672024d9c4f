"""`dragon-network-config`: prints the nodes of an allocation or a list of hosts, for `dragon --network-config`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragon.cli import machine
from dragon.commands import Parser, end_with, explained
from dragon.infrastructure import variables
from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.membership import Member
from dragon.infrastructure.structs import msgspec
from dragon.launcher.base import Launcher
from dragon.launcher.choice import choose
from dragon.launcher.frontend import Options, gather
from dragon.launcher.rendezvous import Rendezvous

_ACTIVE = 4  # the state of a node in use, in network configuration files


async def survey(launcher: Launcher, prefix: str, port: int, timeout: float) -> list[Member]:
    """Return one member for each node, in the launcher's order. Raises LaunchError if one does not join."""
    meeting = Rendezvous(launcher.nodes, launcher.identity)
    claims = {"network_prefix": prefix} if prefix else {}
    options = Options(prefix=prefix, port=port, join_timeout=timeout, claims=claims)
    try:
        await gather(launcher, meeting, options, asyncio.get_running_loop().create_future())
        return [member for member in meeting.members if member is not None]
    finally:
        await meeting.dismiss()
        await launcher.stop(0.0)


def as_configuration(members: list[Member], hosts: list[str], primary: str = "") -> dict[str, dict[str, Any]]:
    names = [host or member.node.host_name for host, member in zip(hosts, members, strict=True)]
    own = [member.node.host_name for member in members]
    if primary and primary not in {*names, *own}:
        raise ValueError(f"{primary!r} is none of the nodes: {', '.join(names)}")
    first = (names if primary in names else own).index(primary) if primary else 0
    return {
        str(index): {
            "state": _ACTIVE,
            "h_uid": member.node.h_uid,
            "host_id": member.node.h_uid,
            "name": member.node.host_name,
            "host_name": names[index],
            "is_primary": index == first,
            "ip_addrs": [f"{address}:{member.port}" for address in member.addresses],
            "fabric_ep_addrs_available": False,
            "fabric_ep_addrs": [],
            "fabric_ep_addr_lens": [],
            "num_cpus": len(member.node.cpus),
            "cpu_devices": member.node.cpus,
            "accelerators": {"vendor": member.node.gpu_vendor, "device_list": member.node.gpus},
            "physical_mem": member.node.physical_mem,
            "g_idx": index,
        }
        for index, member in enumerate(members)
    }


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="dragon-network-config",
        description="Start an agent on each node of the allocation or the list, and print how each describes itself.",
    )
    nodes = result.add_argument_group("nodes")
    machine.add_count_and_shape(nodes)
    machine.add_hosts(nodes)
    machine.add_network(nodes)
    add = result.add_argument
    add("--primary", default="", metavar="HOST", help="the node of the head process (default: the first)")
    add("-l", "--log", metavar="LEVEL", help="what is logged on stderr (default WARNING)")
    add("-y", "--output-to-yaml", action="store_true", help="write a file named after the launcher")
    add("-j", "--output-to-json", action="store_true", help="write a file named after the launcher")
    add("--no-stdout", action="store_true", help="print nothing")
    result.set_defaults(idle=0, network_config=None, single_node_override=False, multi_node_override=False)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.log:
        os.environ[variables.LOG_LEVEL] = arguments.log.upper()
    return explained("dragon-network-config", lambda: _write(arguments, *_nodes(arguments)), DragonError, ValueError)


def _write(arguments: argparse.Namespace, name: str, nodes: dict[str, Any]) -> int:
    if arguments.output_to_yaml:
        Path(f"{name}.yaml").write_bytes(msgspec.yaml.encode(nodes))
    if arguments.output_to_json:
        Path(f"{name}.json").write_text(json.dumps(nodes, indent=2) + "\n")
    if not arguments.no_stdout:
        print(json.dumps(nodes, indent=2))
    return 0


def _nodes(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    import uvloop

    wanted = machine.wanted(arguments)
    launcher = choose(wanted._replace(single=False, several=not arguments.nodes))
    if launcher is None:
        raise ValueError("one node needs no configuration; give --nodes, --hostlist or --wlm, or use an allocation")
    members = uvloop.run(
        survey(launcher, arguments.network_prefix, arguments.port, arguments.join_timeout), debug=False
    )
    return launcher.name, as_configuration(members, launcher.nodes, arguments.primary)


def run_and_exit() -> None:
    end_with("dragon-network-config", main)
