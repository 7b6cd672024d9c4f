"""`dragon-network-ifaddrs`: prints this machine's network interfaces and their addresses, as a JSON list."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import Any

from dragon.commands import Parser, end_with
from dragon.infrastructure.interfaces import interfaces

_FAMILIES = {"AF_INET", "AF_INET6", "AF_PACKET"}
_FLAGS = {  # netdevice(7)
    *("IFF_ALLMULTI", "IFF_AUTOMEDIA", "IFF_BROADCAST", "IFF_DEBUG", "IFF_DORMANT", "IFF_DYNAMIC", "IFF_ECHO"),
    *("IFF_LOOPBACK", "IFF_LOWER_UP", "IFF_MASTER", "IFF_MULTICAST", "IFF_NOARP", "IFF_NOTRAILERS", "IFF_POINTOPOINT"),
    *("IFF_PORTSEL", "IFF_PROMISC", "IFF_RUNNING", "IFF_SLAVE", "IFF_UP"),
}


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="dragon-network-ifaddrs",
        description="List the network interfaces of this machine as JSON, in the manner of getifaddrs(3).",
    )
    result.add_argument(
        "prefix", nargs="*", metavar="PREFIX", help="interfaces whose names begin with one of these (default: all)"
    )
    result.add_argument("-n", "--name", metavar="REGEX", help="interfaces whose whole name matches")
    result.add_argument(
        "-f", "--family", action="append", default=[], metavar="AF", help="address family: AF_INET, AF_INET6, AF_PACKET"
    )
    result.add_argument("--ip", dest="family", action="append_const", const="AF_INET", help="IPv4 addresses")
    result.add_argument("--ip6", dest="family", action="append_const", const="AF_INET6", help="IPv6 addresses")
    flags = {"nargs": "+", "action": "extend", "default": [], "metavar": "FLAG"}
    result.add_argument("-r", "--require-flags", help="only with all of these flags (UP, or IFF_UP)", **flags)  # type: ignore[arg-type]
    result.add_argument("-a", "--any-flags", help="only with one of these flags", **flags)  # type: ignore[arg-type]
    result.add_argument("-x", "--exclude-flags", help="only without these flags", **flags)  # type: ignore[arg-type]
    result.add_argument("--up", dest="require_flags", action="append_const", const="UP", help="the same as -r UP")
    result.add_argument(
        "--running", dest="require_flags", action="append_const", const="RUNNING", help="the same as -r RUNNING"
    )
    result.add_argument(
        "--no-loopback", dest="exclude_flags", action="append_const", const="LOOPBACK", help="the same as -x LOOPBACK"
    )
    return result


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    found = interfaces()
    _check("-f", _families(arguments.family), {*_FAMILIES, *(entry["family"] for entry in found)})
    for option, flags in (
        ("-r", arguments.require_flags),
        ("-a", arguments.any_flags),
        ("-x", arguments.exclude_flags),
    ):
        _check(option, _full(flags), _FLAGS)
    try:
        chosen = [entry for entry in found if _fits(entry, arguments)]
    except re.error as error:
        parser().error(f"--name: {arguments.name!r} is not a regular expression: {error}")
    print(json.dumps(chosen, indent=2))
    return 0


def _fits(entry: dict[str, Any], arguments: argparse.Namespace) -> bool:
    flags = set(entry["flags"])
    families = _families(arguments.family)
    return (
        (not arguments.prefix or entry["name"].startswith(tuple(arguments.prefix)))
        and (arguments.name is None or re.fullmatch(arguments.name, entry["name"]) is not None)
        and (not families or entry["family"] in families)
        and _full(arguments.require_flags) <= flags
        and (not arguments.any_flags or bool(_full(arguments.any_flags) & flags))
        and not _full(arguments.exclude_flags) & flags
    )


def _check(option: str, given: set[str], known: set[str]) -> None:
    if unknown := sorted(given - known):
        parser().error(f"{option}: {unknown[0]} is none of {', '.join(sorted(known))}")


def _families(names: list[str]) -> set[str]:
    return {f"AF_{name.upper().removeprefix('AF_')}" for name in names}


def _full(names: list[str]) -> set[str]:
    return {f"IFF_{name.upper().removeprefix('IFF_')}" for name in names}


def run_and_exit() -> None:
    end_with("dragon-network-ifaddrs", main)
