"""The network interfaces of this machine, and their addresses that other nodes can use."""

from __future__ import annotations

import re
import socket
from typing import Any

# Fabrics of HPC machines and InfiniBand come first: they are meant for such traffic.
_FABRIC = re.compile(r"^(hsn|ipogif|ib)")
# Bridges of container engines have the same address on every machine.
_INNER = re.compile(r"^(docker|br-|virbr|veth|cni|flannel|podman)")
_FAMILIES = {socket.AF_INET: "AF_INET", socket.AF_INET6: "AF_INET6", socket.AF_PACKET: "AF_PACKET"}


def interfaces() -> list[dict[str, Any]]:
    """Return one dict for each address of each interface, with the fields of getifaddrs(3)."""
    import psutil

    states = psutil.net_if_stats()
    result = []
    for name, addresses in psutil.net_if_addrs().items():
        flags = sorted(flag.upper() for flag in states[name].flags.split(",")) if name in states else []
        for entry in addresses:
            result.append(
                {
                    "name": name,
                    "flags": [f"IFF_{flag}" for flag in flags if flag],
                    "family": _FAMILIES.get(entry.family, str(int(entry.family))),
                    "address": entry.address,
                    "netmask": entry.netmask,
                    "broadcast": entry.broadcast,
                    "destination": entry.ptp,
                }
            )
    return result


def usable_addresses(prefix: str = "") -> list[str]:
    """Return the IP addresses at which other machines may reach this one, the likeliest first."""
    try:
        wanted = re.compile(prefix)
    except re.error as error:
        raise ValueError(f"{prefix!r} is not a regular expression: {error}") from error
    found = [
        (_rank(entry), entry["address"])
        for entry in interfaces()
        if "IFF_UP" in entry["flags"]
        and wanted.match(entry["name"])
        and entry["family"] in ("AF_INET", "AF_INET6")
        and "IFF_LOOPBACK" not in entry["flags"]
        # A link-local address is useless without the name of its link.
        and not entry["address"].lower().startswith("fe80:")
    ]
    if not found and prefix:
        names = sorted({entry["name"] for entry in interfaces()})
        raise ValueError(f"no interface that is up has an address and a name like {prefix!r}; there are {names}")
    return [address for _, address in sorted(found, key=lambda pair: pair[0])]


def own_addresses() -> list[str]:
    """Return the addresses for a run of this machine alone: the loopback if there is no network."""
    # The host's name is not looked up: without a network that may take half a minute.
    return usable_addresses() or ["127.0.0.1"]


def _rank(entry: dict[str, Any]) -> tuple[bool, bool, bool]:
    name = entry["name"]
    return bool(_INNER.match(name)), not _FABRIC.match(name), entry["family"] == "AF_INET6"
