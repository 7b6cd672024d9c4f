"""The life cycle of an agent: it joins its run, serves until the run ends, and cleans up."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import uvloop

from dragon import _core
from dragon.agent.output.streams import ended
from dragon.agent.processes.parents import PREPARE, ZYGOTE_ENDS_WITHIN_S, end_orphans
from dragon.agent.processes.starting import Spawner
from dragon.agent.server import Agent
from dragon.infrastructure import variables
from dragon.infrastructure.errors import DragonError, RunEndedError
from dragon.infrastructure.interfaces import usable_addresses
from dragon.infrastructure.membership import Membership, Token
from dragon.infrastructure.node_desc import describe_this_node
from dragon.infrastructure.signals import ENDING
from dragon.infrastructure.structs import msgspec
from dragon.infrastructure.system import allow_many_files
from dragon.runtime.agent_client import forbid_asking
from dragon.runtime.folder import Owner, is_alive, remove_ended, remove_folder
from dragon.runtime.log import runtime_log, tell_loop_errors
from dragon.runtime.run import Run, belong
from dragon.runtime.run_info import FrontEnd, RunInfo
from dragon.signals import heeded

if TYPE_CHECKING:
    from dragon.agent.cluster import Cluster
    from dragon.agent.early import Early

log = runtime_log("agent")

Join = Callable[[Run, Spawner], "Awaitable[Cluster]"]


class Beginning(NamedTuple):
    """What an agent begins with: its run, the zygote and the connection to it, the socket for processes, and what has
    come already. A run of several nodes has `join` instead, which connects the agent to the others."""

    run: Run
    zygote: int
    events: socket.socket
    requests: socket.socket
    early: Early | None = None
    join: Join | None = None


_JOIN_TIMEOUT = 60.0
_LOOPBACK = "127.0.0.1"


def join_and_serve(token: Token, run: Run, zygote: int, events: socket.socket, requests: socket.socket) -> NoReturn:
    from dragon.agent.cluster import Cluster
    from dragon.agent.wire.ucx import open_fabric
    from dragon.control import join

    listener, addresses = _listen(token)
    node = describe_this_node(token.claims, addresses)

    async def find_others(run: Run, spawner: Spawner) -> Cluster:
        timeout = token.claims.get("join_timeout", _JOIN_TIMEOUT)
        transport, port = token.claims.get("transport", ""), listener.getsockname()[1]
        fabric = open_fabric(transport, node.host_name)
        membership, control = await join(token, node, addresses, port, timeout)
        _take_over(run, spawner, membership)
        cluster = Cluster(membership, control, listener, fabric, plain=transport == "plain")
        await cluster.find_members()
        return cluster

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


def _take_over(run: Run, spawner: Spawner, membership: Membership) -> None:
    settings = membership.settings
    environment: dict[str, str] = {**settings.get("environment", {}), **settings.get("variables", {})}
    told = {"node": membership.index, "label": settings.get("label", ""), "environment": environment}
    belong(run, **told)
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


def serve_for_ever(beginning: Beginning) -> NoReturn:
    """Serve until the run ends, then clean up, whatever happened."""
    forbid_asking()
    gc.freeze()
    gc.enable()
    # Not in asyncio's debug mode, which -X dev would switch on: it reports callbacks that take long on a busy machine.
    uvloop.run(_serve_and_leave(beginning), debug=False)
    raise AssertionError("an agent continues after its end")


async def _serve_and_leave(beginning: Beginning) -> NoReturn:
    # Exits within the loop, which would remove its signal handlers at its end: a closed terminal sends two signals.
    code = 1
    try:
        code = await _serve(beginning)
    except Exception:
        log.exception("the agent failed; the run ends")
    finally:
        try:
            remove_folder(beginning.run.folder)
            remove_ended()  # files of ended processes, such as the claims of a killed program
        finally:
            os._exit(code)


async def _serve(beginning: Beginning) -> int:
    loop = asyncio.get_running_loop()
    tell_loop_errors(loop)
    allow_many_files()
    over: asyncio.Future[None] = loop.create_future()
    agent: Agent | None = None

    def end() -> None:
        if agent is not None:
            agent.services.end()
        elif not over.done():
            over.set_result(None)

    for number in heeded(ENDING):
        loop.add_signal_handler(number, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    if beginning.early is not None:
        _watch(beginning.early.owner, end)

    def zygote_gone(reason: str) -> None:
        log.error("the zygote (pid %d) is lost (%s); the run ends", beginning.zygote, reason)
        end()

    try:
        spawner = Spawner(beginning.run.zygote_socket(), beginning.events, zygote_gone)
    except ConnectionRefusedError:
        log.error("the zygote (pid %d) has ended already; the run ends", beginning.zygote)
        await _end_zygote(beginning.zygote)
        end_orphans(beginning.zygote)
        return 0
    code, cluster = 0, None
    try:
        if beginning.join is not None:
            code, cluster = await _find_others(beginning.join(beginning.run, spawner), over)
        if beginning.join is None or cluster is not None:
            agent = Agent(beginning.run, beginning.zygote, beginning.requests, spawner, cluster, over)
            if beginning.early is not None:
                agent.take_over(beginning.early)
                with suppress(OSError):  # the zygote has ended, as its events tell
                    beginning.events.send(PREPARE)
            await over
    finally:
        await _finish(beginning.zygote, spawner, cluster, agent)
    return code


def _watch(owner: Owner, end: Callable[[], None]) -> None:
    try:
        fd = _core.open_process(owner.pid)
    except ProcessLookupError:
        end()
        return
    if is_alive(owner):
        asyncio.get_running_loop().add_reader(fd, end)
    else:
        end()


async def _find_others(join: Awaitable[Cluster], over: asyncio.Future[None]) -> tuple[int, Cluster | None]:
    """Join a run of several nodes. Returns an exit code, and None instead of the others if this node cannot join."""
    joining = asyncio.ensure_future(join)
    either: list[asyncio.Future[Any]] = [joining, over]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not joining.done():
        joining.cancel()
        return 0, None
    try:
        return 0, joining.result()
    except RunEndedError as error:
        log.debug("%s", error)
        return 0, None
    except DragonError as error:
        log.error("%s", error)
        return 1, None


# ---- the end


async def _finish(zygote: int, spawner: Spawner, cluster: Cluster | None, agent: Agent | None) -> None:
    if agent is not None and agent.telemetry.recording:
        await spawner.catch_up()  # so that processes that ended by themselves are recorded with their exit codes
    spawner.close()
    await _end_zygote(zygote)
    end_orphans(zygote, agent.services.trackers.processes if agent is not None else ())
    if agent is not None:
        await agent.finish()
    if cluster is not None:
        await cluster.leave()


async def _end_zygote(zygote: int) -> None:
    """Wait until the zygote ends, which it does when its connection is closed; if it takes too long, it is killed."""
    try:
        async with asyncio.timeout(ZYGOTE_ENDS_WITHIN_S + variables.grace()):
            await ended(zygote)
    except TimeoutError:
        log.error("the zygote does not end; it is killed")
        os.kill(zygote, signal.SIGKILL)
