"""The agent of a node of several: it joins its run, serves it, and leaves nothing behind."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

import msgspec

from dragon import _core
from dragon.agent.cluster import Cluster
from dragon.agent.control import join
from dragon.agent.fabric import open_fabric
from dragon.agent.main import become_reaper, fork_zygote
from dragon.agent.server import Agent
from dragon.infrastructure import variables
from dragon.infrastructure.interfaces import usable_addresses
from dragon.infrastructure.membership import Membership, Token
from dragon.infrastructure.node_desc import describe_this_node
from dragon.infrastructure.signals import ENDING
from dragon.runtime import folder as run_folder
from dragon.runtime import run as run_module
from dragon.runtime.folder import FrontEnd
from dragon.runtime.host_name import own_host_name, write_hosts

__all__ = ["serve"]

_JOIN_TIMEOUT = 60.0
_LOOPBACK = "127.0.0.1"


def serve(token: Token) -> int:
    """Join the run of the token and serve it to its end; the exit code. Raises JoinError where that is impossible."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run_folder.sweep()
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # the agent takes them, and leaves nothing behind
    folder = run_folder.make_folder()
    try:
        _take_host_name(token, folder)
        listener, addresses = _listen(token)
        node = describe_this_node(token.claims)
        _core.create_arena(variables.arena_limit())
    except (OSError, ValueError) as error:
        run_folder.remove_folder(folder)
        print(f"dragon: {socket.gethostname()} cannot be a node of the run: {error}", file=sys.stderr)
        return 1
    # What the name of a host resolves to on the host itself is often of use there only.
    node = msgspec.structs.replace(node, ip_addrs=addresses)
    _core.set_keeper()
    me = run_folder.this_process()
    run = run_module.Run(folder, me)
    run_module.serve(run)
    requests, zygote_requests = run_module.bind_sockets(folder)
    become_reaper()
    zygote, events = fork_zygote(run, zygote_requests, [requests, listener])

    async def find_others(agent: Agent) -> Cluster:
        timeout = token.claims.get("join_timeout", _JOIN_TIMEOUT)
        fabric = open_fabric(token.claims.get("transport", ""), node.host_name, addresses[0])
        membership, control = await join(token, node, addresses, listener.getsockname()[1], timeout)
        _take_over(agent, membership)
        cluster = Cluster(membership, control, listener, fabric)
        await cluster.meet()
        return cluster

    agent = Agent(run, zygote, events, requests, join=find_others)
    agent.serve_for_ever()


def _take_host_name(token: Token, folder: Path) -> None:
    name = token.claims.get("host_name")
    if not name:
        return
    hosts = folder / "hosts"
    write_hosts(hosts, token.claims.get("host_names", [name]))
    own_host_name(name, hosts)


def _listen(token: Token) -> tuple[socket.socket, list[str]]:
    """Where the other agents can call this one. Raises OSError, ValueError where there is no such place."""
    # A front end that is reached over the loopback has all its nodes on this machine.
    local = all(address.startswith(_LOOPBACK) for address in token.addresses)
    addresses = [_LOOPBACK] if local else usable_addresses(token.claims.get("network_prefix", ""))
    if not addresses:
        raise OSError("it has no network address that other nodes could reach")
    dual = not local and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    listener = socket.create_server((_LOOPBACK if local else "", 0), family=family, backlog=1024, dualstack_ipv6=dual)
    return listener, addresses


def _take_over(agent: Agent, membership: Membership) -> None:
    """What the front end says of the run holds for everything on this node."""
    settings = membership.settings
    environment: dict[str, str] = dict(settings.get("environment", {}))
    if settings.get("log_level"):
        environment[variables.LOG_LEVEL] = settings["log_level"]
    if settings.get("strict"):
        environment[variables.STRICT] = "1"
    told = {"node": membership.index, "label": settings.get("label", ""), "environment": environment}
    run_module.belong(agent.run, **told)
    agent.spawner.tell(told)
    run_folder.RunInfo(
        owner=agent.run.agent,
        agent=agent.run.agent,
        arena_fd=_core.arena_fd(),
        command=settings.get("command", ""),
        node=membership.index,
        name=settings.get("run", ""),
        started=settings.get("started", 0.0),
        front_end=msgspec.convert(settings.get("front_end"), FrontEnd | None),
    ).write(agent.run.folder)
