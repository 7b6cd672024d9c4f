"""The front end of a run over several nodes: it starts the agents, and exchanges messages with each until the run ends.

Their requests are in `dragon.runtime.protocol.agents`.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import uvloop

from dragon import _core
from dragon.control import Control, End
from dragon.infrastructure import configuration, variables
from dragon.infrastructure.errors import DragonError, RunEndedError
from dragon.infrastructure.interfaces import usable_addresses
from dragon.infrastructure.membership import Member
from dragon.infrastructure.signals import NOTICES, PASSED_ON
from dragon.infrastructure.structs import msgspec
from dragon.infrastructure.system import allow_many_files, check_files, what_to_raise
from dragon.launcher.base import Launcher, LaunchError
from dragon.launcher.choice import carried
from dragon.launcher.rendezvous import Rendezvous
from dragon.launcher.terminal import StandardInput, Terminal
from dragon.runtime import folder
from dragon.runtime.log import runtime_log, tell_loop_errors
from dragon.runtime.protocol import agents
from dragon.runtime.protocol.request import Caller, Request, decode_answer
from dragon.runtime.protocol.run import EndRun
from dragon.runtime.rpc import RemoteError, Table, serves, serves_for
from dragon.runtime.run_info import FrontEnd as FrontEndProcess
from dragon.signals import heeded
from dragon.web import serving

_Answer = TypeVar("_Answer")

_ANSWER_TIMEOUT_S = 10.0


class Decisions:
    """Makes and numbers the decisions; `last` is the number of the last one."""

    def __init__(self) -> None:
        self.last = 0
        self._last_loss = 0
        self._shards: dict[tuple[str, int], int] = {}

    def lose(self) -> int:
        self.last = self._last_loss = self.last + 1
        return self.last

    def decide(self, proposal: agents.Proposal, alive: Collection[int]) -> int | None:
        shard = proposal.number, proposal.manager
        if proposal.epoch < self._shards.get(shard, 0) or proposal.seen < self._last_loss:
            return None
        if not set(proposal.holders) <= set(alive):
            return None
        self.last += 1
        self._shards[shard] = self.last
        return self.last


_FEWEST_FILES = 40  # open files of a front end, in addition to one for each node
log = runtime_log("frontend")

OUTPUT_WINDOW = 2**20
_SMALLEST_WINDOW = 2**16
_OUTPUT_MEMORY = 2**28  # bytes, for all nodes together
# Set for a program that was restarted after a node was lost.
RESTARTED = "DRAGON_RESILIENT_RESTART"

# Seconds between a signal to the front end and the end of everything.
_SIGNAL_TIMEOUT_S = 10.0
_SHUTDOWN_TIMEOUT_S = 12.0  # besides the grace


class Options(msgspec.Struct, kw_only=True):
    """The options of a run over several nodes."""

    prefix: str = ""  # of the network interfaces to use; a regular expression
    port: int = 0  # the port at which the front end listens; 0 for any
    join_timeout: float = 60.0  # seconds within which nodes must join
    claims: dict[str, Any] = {}  # settings for agents before they join
    settings: dict[str, Any] = {}  # settings that every agent gets with its membership
    idle: int = 0  # the number of spare nodes
    resilient: bool = False  # whether the program is restarted when a node is lost
    exhaust: bool = False  # whether it is restarted until no node is left


def listening_hosts(launcher: Launcher, prefix: str) -> list[str]:
    """Return the addresses at which the nodes of a launcher can reach this machine."""
    if launcher.local:
        return ["127.0.0.1"]
    try:
        hosts = usable_addresses(prefix)
    except ValueError as error:
        raise LaunchError(f"--network-prefix: {error}") from error
    if not hosts:
        raise LaunchError("this host has no network address that other nodes could reach")
    return hosts


async def gather(launcher: Launcher, meeting: Rendezvous, options: Options, over: asyncio.Future[int]) -> bool:
    """Start the agents, and wait until all nodes have joined. Returns False if it is `over` before."""
    token = meeting.listen(listening_hosts(launcher, options.prefix), options.port or launcher.port)
    token.claims = {"join_timeout": options.join_timeout, **options.claims}
    joining = asyncio.ensure_future(meeting.gather(options.join_timeout))
    failure: asyncio.Future[str] | None = None
    try:
        await launcher.start(token)
        while not joining.done():
            failure = asyncio.ensure_future(launcher.failed())
            waits: list[asyncio.Future[Any]] = [joining, over, failure]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                return False
            if not joining.done():
                one_each = len(launcher.starters) == len(launcher.nodes)
                if not (one_each and meeting.goes_without(len(launcher.failures), failure.result())):
                    raise LaunchError(failure.result())
        try:
            joining.result()
            meeting.settle()
        except LaunchError as error:
            raise LaunchError("\n".join(filter(None, [str(error), launcher.told()]))) from error
        return True
    finally:
        joining.cancel()
        if failure is not None:
            failure.cancel()


class FrontEnd:
    """One run, from starting its agents to the head process's exit code. It must be made within an event loop."""

    def __init__(self, launcher: Launcher, head: agents.StartHead, options: Options) -> None:
        self.launcher = launcher
        self.head = head
        self.options = options
        spared = options.idle and not options.exhaust
        self._needed = max(1, len(launcher.nodes) - options.idle) if spared else 1
        self.head_node: int | None = None
        self.terminal = Terminal(self._on_terminal_closed)
        self.input = StandardInput(self._on_input)
        self._table = Table()
        self._table.serve(self)
        self._views: serving.Views | None = None
        self._ending = False
        self._hurried = False
        self._interrupted = False
        self._restarted = False
        # Nodes whose processes are being ended before the head process is restarted.
        self._clearing: set[int] = set()
        self._writing: set[int] = set()  # nodes that are still writing files at the end, which may take long
        self._decisions = Decisions()
        self.loop = asyncio.get_running_loop()
        self.code: asyncio.Future[int] = self.loop.create_future()
        spare = len(launcher.nodes) - self._needed if options.resilient else 0
        self.meeting = Rendezvous(launcher.nodes, launcher.identity, spare)
        self.alive: dict[int, Control] = {}
        self.all_gone = asyncio.Event()

    async def run(self) -> int:
        """Run to the end. Returns the exit code of the head process, negative for a signal."""
        tell_loop_errors(self.loop)
        check_files(_FEWEST_FILES + len(self.launcher.nodes), f"a run of {len(self.launcher.nodes)} nodes")
        allow_many_files()
        for number in heeded(PASSED_ON):
            self.loop.add_signal_handler(number, self._on_signal, number)
        for number in heeded(NOTICES):
            self.loop.add_signal_handler(number, self._pass_on, number)
        try:
            if await gather(self.launcher, self.meeting, self.options, self.code):
                self._take_over()
                await self._open_views()
                # A node may have been lost already, and the head process started or the run ended because of that.
                if self.head_node is None and not self.code.done():
                    self._start_head()
            return await self.code
        finally:
            await self._end()

    async def _open_views(self) -> None:
        if serving.are_wanted():
            self._views = serving.Views(self._ask)
            await self._views.open()

    def _take_over(self) -> None:
        for index, control in enumerate(self.meeting.controls):
            assert control is not None
            self.alive[index] = control
        count = len(self.alive)
        settings = {
            "idle": max(0, self.options.idle - (len(self.launcher.nodes) - count)),
            "resilient": self.options.resilient,
            "output_window": max(_SMALLEST_WINDOW, min(OUTPUT_WINDOW, _OUTPUT_MEMORY // count)),
        }
        self.meeting.announce({**self.options.settings, **settings})
        for index, control in list(self.alive.items()):
            control.on_lost = lambda reason, index=index: self._on_lost(index, reason)
            control.serve(partial(self._serve, index))
        self.launcher.show(lambda data: self.terminal.write(2, data))

    def _serve(self, index: int, body: msgspec.Raw) -> object:
        return self._table.do(self._table.decode(body, ()), Caller(index))

    def _start_head(self) -> None:
        self.head_node = min(self.alive)
        if self._restarted:
            self.head.environment[RESTARTED] = "1"
        self.alive[self.head_node].send(self.head)

    async def _ask(self, request: Request[_Answer]) -> _Answer:
        """Return the answer of an agent, which asks all the others."""
        if not self.alive:
            raise RunEndedError("the run is at its end")
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return decode_answer(request, await self.alive[min(self.alive)].ask(request))
        except TimeoutError:
            raise DragonError(f"the run has not answered within {_ANSWER_TIMEOUT_S:g} s") from None
        except (ConnectionError, RemoteError) as error:
            raise DragonError(str(error)) from None

    # ---- what agents send

    @serves_for(agents.WantsInput)
    def _on_wants_input(self, caller: Caller) -> None:
        self.input.want()

    @serves_for(agents.Bye)
    def _on_bye(self, caller: Caller) -> None:
        self.alive[caller.node].close()
        self._on_lost(caller.node, "its agent was ended")

    @serves(agents.Members)
    def _members(self) -> list[Member]:
        return [member for member in self.meeting.members if member is not None]

    @serves(EndRun)
    def _end_run(self) -> None:
        self._on_signal(signal.SIGTERM)

    @serves_for(agents.Writing)
    def _on_writing(self, caller: Caller) -> None:
        self._writing.add(caller.node)

    @serves_for(agents.Wrote)
    def _on_output(self, caller: Caller, number: int, data: bytes) -> None:
        if number not in (1, 2):
            log.warning("%s sent output of descriptor %d", self._name(caller.node), number)
            return
        control = self.alive[caller.node]

        def written() -> None:
            self._soon(lambda: control.send(agents.Shown(len(data))))

        self.terminal.write(number, data, written)

    def _on_input(self, data: bytes) -> None:
        def send() -> None:
            if self.head_node is not None and self.head_node in self.alive:
                self.alive[self.head_node].send(agents.Input(data))

        self._soon(send)

    def _soon(self, callback: Callable[[], None]) -> None:
        """Call the function in the event loop; may be called in any thread."""
        with suppress(RuntimeError):  # the loop is closed: the run is over
            self.loop.call_soon_threadsafe(callback)

    @serves_for(agents.HeadExited)
    def _on_head_exited(self, caller: Caller, code: int, error: str = "") -> None:
        if caller.node != self.head_node:
            return  # an earlier head process, which was ended for a restart
        if error:
            self.terminal.write(2, f"dragon: {error}\n".encode())
        if not self.code.done():
            self.code.set_result(code)

    def _on_lost(self, index: int, reason: str) -> None:
        del self.alive[index]
        if self._ending:
            if not self.alive:
                self.all_gone.set()
            return
        self._clearing.discard(index)
        log.error("node %d (%s) is lost: %s", index, self._name(index), reason)
        epoch = self._decisions.lose()
        for control in self.alive.values():
            control.send(agents.NodeLost(index, self._name(index), reason, epoch))
        if self.code.done():
            return
        if self._can_restart():
            self._restart_head()
        elif self.head_node in (index, None) or (self.options.resilient and not self._interrupted):
            why = "the head process was there" if index == self.head_node else "too few nodes are left"
            log.error("the run ends: %s", why)
            self.code.set_result(1)

    @serves(agents.Proposal)
    def _on_proposal(
        self, number: str, manager: int, epoch: int, seen: int, before: list[int], holders: list[int]
    ) -> None:
        proposal = agents.Proposal(number, manager, epoch, seen, before, holders)
        decided = self._decisions.decide(proposal, self.alive)
        if decided is not None:
            for index in {*before, *holders} & self.alive.keys():
                self.alive[index].send(agents.Decided(number, manager, holders, decided))

    def _can_restart(self) -> bool:
        return self.options.resilient and len(self.alive) >= self._needed and not self._interrupted

    def _restart_head(self) -> None:
        if self.head_node is not None:
            self.head_node = None
            self._restarted = True
            log.error("the program is restarted on the remaining nodes")
            for index, control in self.alive.items():
                self._clearing.add(index)
                control.ask(agents.Clear()).add_done_callback(partial(self._on_cleared, index))
        elif not self._clearing:
            self._start_head()

    def _on_cleared(self, index: int, cleared: asyncio.Future[msgspec.Raw]) -> None:
        if cleared.cancelled() or cleared.exception() is not None:
            return  # the node is lost
        self._clearing.discard(index)
        if not self._clearing and self.head_node is None:
            self._start_head()

    def _name(self, index: int) -> str:
        member = self.meeting.members[index]
        return member.node.host_name if member else self.meeting.nodes[index]

    def _on_signal(self, number: int) -> None:
        if self._ending:
            self._hurried = True  # a second signal: do not wait for the agents
            self.all_gone.set()
            return
        if not self._interrupted:
            self._interrupted = True
            self.loop.call_later(max(_SIGNAL_TIMEOUT_S, variables.grace()), self._give_up, number)
        if not self._pass_on(number):
            self._give_up(number)

    def _pass_on(self, number: int) -> bool:
        """Forward a signal to the head process. Returns whether there is one."""
        if self.head_node is None or self.head_node not in self.alive:
            return False
        self.alive[self.head_node].send(agents.SignalHead(number))
        return True

    def _give_up(self, number: int) -> None:
        if not self.code.done():
            self.code.set_result(-number)

    def _on_terminal_closed(self, number: int, error: OSError) -> None:
        # `dragon … | head`: on one node the program would get SIGPIPE; here it gets SIGTERM.
        if number == 1:
            if error.errno not in (errno.EPIPE, errno.EIO):
                log.error("stdout cannot be written (%s); the program gets SIGTERM", error.strerror)
            self._soon(lambda: self._on_signal(signal.SIGTERM))

    async def _end(self) -> None:
        self._ending = True
        if self._views is not None:
            self._views.close()
        patience = _SHUTDOWN_TIMEOUT_S + variables.grace()
        joined = [control for control in self.meeting.controls if control is not None]
        for control in joined:
            control.send(End())
        while self.alive and not self._hurried:
            try:
                async with asyncio.timeout(patience):
                    await self.all_gone.wait()
            except TimeoutError:
                if self._writing & self.alive.keys():
                    continue
                names = ", ".join(self._name(index) for index in sorted(self.alive))
                log.error(
                    "%s did not acknowledge shutdown within %g s; what runs there ends with the connection",
                    names,
                    patience,
                )
                break
        self.meeting.close()
        for control in joined:
            control.close()
        await self.launcher.stop(patience if self.meeting.announced and not self._hurried else 0.0)
        for control in joined:
            control.drop()
        while not await self.loop.run_in_executor(None, self.terminal.finish, 1.0):
            if self._interrupted or self._hurried:
                break  # the reader does not read, and the user does not want to wait


def run_program(launcher: Launcher, command: list[str], arguments: argparse.Namespace) -> int:
    """Run the program to its end. Returns its exit code, negative for a signal. Raises LaunchError."""
    environment = carried()
    claims = {"transport": _transport(arguments.transport)}
    if arguments.network_prefix:
        claims["network_prefix"] = arguments.network_prefix
    settings = {
        "label": arguments.label,
        "variables": {
            variables.GRACE: str(variables.grace()),
            **{name: os.environ[name] for name in (variables.LOG_LEVEL, variables.STRICT) if name in os.environ},
        },
        "environment": environment,
        "folder": os.getcwd(),
        "command": " ".join(command),
        "run": os.urandom(3).hex(),
        "started": time.time(),
        "front_end": msgspec.to_builtins(FrontEndProcess(folder.this_process(), folder.this_machine())),
    }
    options = Options(
        prefix=arguments.network_prefix,
        port=arguments.port,
        join_timeout=arguments.join_timeout,
        claims=claims,
        settings=settings,
        idle=arguments.idle,
        resilient=arguments.resilient,
        exhaust=arguments.exhaust_resources,
    )
    head = agents.StartHead(command[0], command[1:], environment, os.getcwd(), _core.current_signals())

    async def serve() -> int:
        return await FrontEnd(launcher, head, options).run()

    sys.stdout.flush()
    try:
        return uvloop.run(serve(), debug=False)
    except RuntimeError as error:
        if "new thread" not in str(error):
            raise
        raise LaunchError(f"the front end could not continue: {error}{what_to_raise(errno.EAGAIN)}") from error


def _transport(asked: str | None) -> str:
    """Return "tcp", "plain" or "ucx"; "" if the runtime is to choose."""
    if asked is None:
        return "tcp" if configuration.read().get("tcp_runtime") else ""
    return asked if asked in ("plain", "ucx") else "tcp"
