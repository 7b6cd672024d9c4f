"""`dragon-network-ifaddrs`: prints this machine's network interfaces and their addresses, as a JSON list."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from dragon.commands import Parser, checked, end_with
from dragon.infrastructure.interfaces import interfaces

_FAMILIES = {"AF_INET", "AF_INET6", "AF_PACKET"}
_FLAGS = {  # netdevice(7)
    *("IFF_ALLMULTI", "IFF_AUTOMEDIA", "IFF_BROADCAST", "IFF_DEBUG", "IFF_DORMANT", "IFF_DYNAMIC", "IFF_ECHO"),
    *("IFF_LOOPBACK", "IFF_LOWER_UP", "IFF_MASTER", "IFF_MULTICAST", "IFF_NOARP", "IFF_NOTRAILERS", "IFF_POINTOPOINT"),
    *("IFF_PORTSEL", "IFF_PROMISC", "IFF_RUNNING", "IFF_SLAVE", "IFF_UP"),
}


def _one_of(known: set[str], prefix: str) -> Callable[[str], str]:
    """Return a converter for one of the known names, in lower case and without its prefix as well."""
    expected = f"one of {', '.join(sorted(known))}"
    return checked(lambda text: prefix + text.upper().removeprefix(prefix), known.__contains__, expected)


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="dragon-network-ifaddrs",
        description="List the network interfaces of this machine as JSON, in the manner of getifaddrs(3).",
    )
    add = result.add_argument
    add("prefix", nargs="*", metavar="PREFIX", help="interfaces whose names begin with one of these (default: all)")
    add("-n", "--name", metavar="REGEX", help="interfaces whose whole name matches")
    families = f"address family: {', '.join(sorted(_FAMILIES))}"
    add("-f", "--family", action="append", type=_one_of(_FAMILIES, "AF_"), default=[], metavar="AF", help=families)
    add("--ip", dest="family", action="append_const", const="AF_INET", help="IPv4 addresses")
    add("--ip6", dest="family", action="append_const", const="AF_INET6", help="IPv6 addresses")
    for short, name, meaning in (
        ("-r", "require", "only with all of these flags (UP, or IFF_UP)"),
        ("-a", "any", "only with one of these flags"),
        ("-x", "exclude", "only without these flags"),
    ):
        kind, flags = _one_of(_FLAGS, "IFF_"), f"--{name}-flags"
        add(short, flags, type=kind, nargs="+", action="extend", default=[], metavar="FLAG", help=meaning)
    for option, short, name, flag in (
        ("--up", "-r", "require", "UP"),
        ("--running", "-r", "require", "RUNNING"),
        ("--no-loopback", "-x", "exclude", "LOOPBACK"),
    ):
        same = f"the same as {short} {flag}"
        add(option, dest=f"{name}_flags", action="append_const", const=f"IFF_{flag}", help=same)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        chosen = [entry for entry in interfaces() if _fits(entry, arguments)]
    except re.error as error:
        parser().error(f"--name: {arguments.name!r} is not a regular expression: {error}")
    print(json.dumps(chosen, indent=2))
    return 0


def _fits(entry: dict[str, Any], arguments: argparse.Namespace) -> bool:
    flags = set(entry["flags"])
    return (
        (not arguments.prefix or entry["name"].startswith(tuple(arguments.prefix)))
        and (arguments.name is None or re.fullmatch(arguments.name, entry["name"]) is not None)
        and (not arguments.family or entry["family"] in arguments.family)
        and flags.issuperset(arguments.require_flags)
        and (not arguments.any_flags or not flags.isdisjoint(arguments.any_flags))
        and flags.isdisjoint(arguments.exclude_flags)
    )


def run_and_exit() -> None:
    end_with("dragon-network-ifaddrs", main)
