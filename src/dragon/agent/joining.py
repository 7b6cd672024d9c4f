"""How the agent of a run of several nodes joins its run."""

from __future__ import annotations

import socket
from typing import NoReturn

from dragon import _core
from dragon.agent.connections import Connections, connect_nodes
from dragon.agent.life import Beginning, serve_for_ever
from dragon.agent.processes.starting import Spawner
from dragon.agent.wire.ucx import open_fabric
from dragon.control import join
from dragon.infrastructure.interfaces import usable_addresses
from dragon.infrastructure.membership import Membership, Token
from dragon.infrastructure.node_desc import describe_this_node
from dragon.infrastructure.structs import msgspec
from dragon.runtime import run as run_module
from dragon.runtime.run_info import FrontEnd, RunInfo

_JOIN_TIMEOUT = 60.0
_LOOPBACK = "127.0.0.1"


def join_and_serve(
    token: Token, run: run_module.Run, zygote: int, events: socket.socket, requests: socket.socket
) -> NoReturn:
    """Join the run of the token and serve it until it ends."""
    listener, addresses = _listen(token)
    node = describe_this_node(token.claims, addresses)

    async def find_others(run: run_module.Run, spawner: Spawner) -> Connections:
        timeout = token.claims.get("join_timeout", _JOIN_TIMEOUT)
        transport, port = token.claims.get("transport", ""), listener.getsockname()[1]
        fabric = open_fabric(transport, node.host_name)
        membership, control = await join(token, node, addresses, port, timeout)
        _take_over(run, spawner, membership)
        return await connect_nodes(membership, control, listener, fabric, plain=transport == "plain")

    serve_for_ever(Beginning(run, zygote, events, requests, join=find_others))


def _listen(token: Token) -> tuple[socket.socket, list[str]]:
    """Open a listening socket for the other agents. Returns it, and its addresses."""
    # If the front end's address is the loopback, all nodes are on this machine.
    local = all(address.startswith(_LOOPBACK) for address in token.addresses)
    addresses = [_LOOPBACK] if local else usable_addresses(token.claims.get("network_prefix", ""))
    if not addresses:
        raise OSError("it has no network address that other nodes could reach")
    dual = not local and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    listener = socket.create_server((_LOOPBACK if local else "", 0), family=family, backlog=1024, dualstack_ipv6=dual)
    return listener, addresses


def _take_over(run: run_module.Run, spawner: Spawner, membership: Membership) -> None:
    """Apply the settings of the front end to this node."""
    settings = membership.settings
    environment: dict[str, str] = {**settings.get("environment", {}), **settings.get("variables", {})}
    told = {"node": membership.index, "label": settings.get("label", ""), "environment": environment}
    run_module.belong(run, **told)
    spawner.tell(told)
    RunInfo(
        owner=run.agent,
        agent=run.agent,
        arena_fd=_core.arena_fd(),
        command=settings.get("command", ""),
        node=membership.index,
        name=settings.get("run", ""),
        started=settings.get("started", 0.0),
        front_end=msgspec.convert(settings.get("front_end"), FrontEnd | None),
    ).write(run.folder)
