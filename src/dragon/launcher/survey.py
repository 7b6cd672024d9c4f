"""Collects the descriptions of a launcher's nodes, by letting an agent of each join."""

from __future__ import annotations

import asyncio
from typing import Any

from dragon.infrastructure.membership import Member
from dragon.launcher.base import Launcher, LaunchError
from dragon.launcher.frontend import listening_hosts
from dragon.launcher.rendezvous import Rendezvous

_ACTIVE = 4  # the state of a node in use, in network configuration files


async def survey(launcher: Launcher, prefix: str, port: int, timeout: float) -> list[Member]:
    """Return one member for each node, in the launcher's order. Raises LaunchError if one does not join."""
    meeting = Rendezvous(launcher.nodes, launcher.identity)
    token = meeting.listen(listening_hosts(launcher, prefix), port or launcher.port)
    token.claims = {"join_timeout": timeout, **({"network_prefix": prefix} if prefix else {})}
    gathering = asyncio.ensure_future(meeting.gather(timeout))
    try:
        await launcher.start(token)
        failure = asyncio.ensure_future(launcher.failed())
        await asyncio.wait([gathering, failure], return_when=asyncio.FIRST_COMPLETED)
        failure.cancel()
        if not gathering.done():
            raise LaunchError(failure.result())
        gathering.result()
        return [member for member in meeting.members if member is not None]
    finally:
        gathering.cancel()
        await meeting.dismiss()
        await launcher.stop(0.0)


def as_configuration(members: list[Member], hosts: list[str], primary: str = "") -> dict[str, dict[str, Any]]:
    """Return the nodes in the form of a network configuration file."""
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
