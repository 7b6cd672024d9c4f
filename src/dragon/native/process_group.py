"""Groups of processes that are started, followed and ended together."""

from __future__ import annotations

import enum
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self, TypeVar

from dragon import _core
from dragon.infrastructure.errors import DragonLoggingError
from dragon.infrastructure.facts import PMIBackend
from dragon.infrastructure.messages import Spawn
from dragon.infrastructure.plain_number import plain_number
from dragon.infrastructure.policy import Policy
from dragon.infrastructure.start_request import Output
from dragon.infrastructure.structs import msgspec
from dragon.infrastructure.variables import PLAN
from dragon.native.process import ProcessTemplate
from dragon.runtime import placement
from dragon.runtime import placement as plan
from dragon.runtime.agent_client import ask
from dragon.runtime.arguments import checked_seconds, checked_signal
from dragon.runtime.handle import Words
from dragon.runtime.placement import one_warning
from dragon.runtime.protocol import groups
from dragon.runtime.protocol.request import Request
from dragon.runtime.run import identity
from dragon.runtime.site_launcher import choose_backend, find_launcher
from dragon.runtime.spawning import standard_streams

__all__ = [
    "DragonProcessGroupAlreadyInitialized",
    "DragonProcessGroupError",
    "DragonProcessGroupException",
    "DragonProcessGroupIdleError",
    "DragonProcessGroupJoinError",
    "DragonProcessGroupRunningError",
    "DragonProcessGroupSignalError",
    "DragonProcessGroupStartError",
    "DragonUserCodeError",
    "ProcessGroup",
]

_LIVES = 0  # the index of the word that is not 0 while any member is alive
_SHOWN = 16  # exit codes in the text of an error


class DragonProcessGroupError(DragonLoggingError):
    """The base class of the errors of process groups."""


class DragonProcessGroupException(DragonProcessGroupError):
    """The group was used in a way that its state does not allow."""


class DragonProcessGroupAlreadyInitialized(DragonProcessGroupError):
    """The group is initialised, and its templates cannot be changed any more."""


class DragonProcessGroupIdleError(DragonProcessGroupError):
    """The group has no running members."""


class DragonProcessGroupStartError(DragonProcessGroupError):
    """The group cannot be started."""


class DragonProcessGroupRunningError(DragonProcessGroupError):
    """The group was closed."""


class DragonProcessGroupJoinError(DragonProcessGroupError):
    """The group cannot be waited for."""


class DragonProcessGroupSignalError(DragonProcessGroupError):
    """The group cannot be sent a signal."""


class DragonUserCodeError(DragonProcessGroupError):
    """A member failed. The message names the first one: rank, node, exit code or signal, and the end of its stderr."""


_Answer = TypeVar("_Answer")


class State(enum.Enum):
    """The state of a group."""

    IDLE = "Idle"
    RUNNING = "Running"
    ERROR = "Error"
    CLOSED = "Closed"


class ProcessGroup:
    """Processes of one or several templates that are started, watched and ended together.

    Call add_process() for each template, then init(), start(), join() and close().

    Args:
        restart: restart members that end, until stop_restart() is called.
        ignore_error_on_exit: if a member fails, join() does not raise and the other members continue.
        pmi: how the members, in order, find each other as ranks of an MPI job: PMIBackend.PMI1 (MPICH and its family),
            PMIX (Open MPI), LAUNCHER (through the site's srun or mpiexec: Cray MPICH) or AUTO, which detects the right
            one. `pmi_enabled=True` means AUTO.
        walltime: seconds after which the members are killed, with a message in the log.
        policy: placement of the members; a template's own policy has precedence. Members whose policy does not name a
            node are distributed round robin over the nodes, or fill node after node with Policy.Distribution.BLOCK.
        critical: accepted for dragonhpc's programs; has no effect.
        name: part of the members' names and of the labels of their output.

    If a member fails (its exit code is not 0) and ignore_error_on_exit is not set, the other members are ended one
    second later and join() raises DragonUserCodeError. A group may be sent to other processes after init(). Leaving a
    `with` block does not close the group.

    Examples:
        >>> from dragon.native.process import ProcessTemplate
        >>> from dragon.native.process_group import ProcessGroup
        >>> group = ProcessGroup(walltime=60)
        >>> group.add_process(nproc=2, template=ProcessTemplate("true"))
        >>> group.init(); group.start(); group.join()
        >>> [code for puid, code in group.exit_status]
        [0, 0]
        >>> group.close()
    """

    def __init__(
        self,
        restart: bool = False,
        ignore_error_on_exit: bool = False,
        pmi: PMIBackend | str | None = None,
        walltime: float | None = None,
        policy: Policy | None = None,
        critical: bool = False,
        name: str | None = None,
        *,
        pmi_enabled: bool = False,
    ) -> None:
        if pmi is not None:
            try:
                pmi = PMIBackend(pmi)
            except ValueError:
                raise RuntimeError(f"Unsupported PMI backend requested: {pmi!r}") from None
        self._pmi = pmi or (PMIBackend.AUTO if pmi_enabled else None)
        if self._pmi is not None and restart:
            raise ValueError("restart=True is not for MPI jobs: a rank that was started again would find no others")
        walltime = walltime if walltime is None else plain_number(walltime)
        if walltime is not None and not (isinstance(walltime, (int, float)) and walltime > 0):
            raise ValueError(f"walltime must be a positive number of seconds, not {walltime!r}")
        if policy is not None and not isinstance(policy, Policy):
            raise TypeError(f"policy must be a Policy, not {policy!r}")
        self._settings = groups.GroupSettings(
            name=str(name or ""),
            restart=bool(restart),
            ignore_error_on_exit=bool(ignore_error_on_exit),
            walltime=walltime,
        )
        self._policy = policy
        self._templates: list[tuple[int, ProcessTemplate]] = []
        self._number: int | None = None
        self._words: _core.Words | None = None
        self._closed = False
        self._just_started: list[int] = []

    def __getstate__(self) -> tuple[groups.GroupSettings, int, Words]:
        if self._number is None:
            raise ValueError("a process group can be sent to other processes only after init()")
        assert self._words is not None
        return self._settings, self._number, Words._attached(self._words._name())

    def __setstate__(self, state: tuple[groups.GroupSettings, int, Words]) -> None:
        self._settings, self._number, self._words = state
        self._policy, self._templates = None, []
        self._closed = False
        self._just_started = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Leave the group as it is: it may be joined after the block, and close() ends it."""

    # ---- setting up

    def add_process(self, nproc: int, template: ProcessTemplate) -> None:
        """Add `nproc` members of this description. Raises DragonProcessGroupAlreadyInitialized after init()."""
        if self._number is not None:
            raise DragonProcessGroupAlreadyInitialized("processes cannot be added after init()")
        nproc = nproc if type(nproc) is int else plain_number(nproc)
        if not isinstance(nproc, int) or nproc < 1:
            raise ValueError(f"nproc must be a positive whole number, not {nproc!r}")
        if not isinstance(template, ProcessTemplate):
            raise TypeError(f"template must be a ProcessTemplate, not {template!r}")
        self._templates.append((nproc, template))

    def init(self) -> None:
        """Place the members and create the group. The templates are serialized now: later changes of them, and further
        calls, have no effect.

        Raises DragonProcessGroupStartError without templates.
        """
        if self._number is not None:
            return
        if not self._templates:
            raise DragonProcessGroupStartError("the group has no templates: add_process() first")
        placed = self._placed()
        templates = [self._request(template) for _, template in self._templates]
        if self._pmi is not None:
            programs = [request.executable or None for request in templates]
            backend, library = choose_backend(self._pmi, programs)
            if library is not None:
                for request in templates:
                    request.environment = {**library.environment, **request.environment}
            what = library.name if library else ""
            self._settings = msgspec.structs.replace(
                self._settings,
                pmi=backend.value,
                mpi_library=what,
                launcher=find_launcher(what) if backend is PMIBackend.LAUNCHER else "",
                pmix_library=library.pmix if library else "",
            )
        self._settings = msgspec.structs.replace(self._settings, creator=identity().puid)
        with standard_streams() as streams:
            created = ask(groups.CreateGroup(self._settings, templates, self._in_runs(placed)), streams)
        self._number = created.number
        for which, place in placed if PLAN in os.environ else ():
            group = self._settings.name or f"group-{self._number}"
            plan.note(place._replace(group=group), f"{group}-{place.rank}", self._templates[which][1].target)
        self._words = _core.Words(created.words)

    def _placed(self) -> list[tuple[int, placement.Placed]]:
        """Return (index of the template, place) of the members, in the order of their ranks."""
        ranks: list[tuple[int, Policy | None]] = []
        merged: list[Policy] = []
        for which, (count, template) in enumerate(self._templates):
            ranks += [(which, template.policy)] * count
            merged += [Policy.merge(self._policy, template.policy)] * count
        with one_warning():
            return [
                (which, placement.place(policy, self._policy, member=member))
                for (which, policy), member in zip(ranks, placement.members("", merged), strict=True)
            ]

    def _in_runs(self, placed: list[tuple[int, placement.Placed]]) -> list[groups.Places]:
        """Return the places as the agent takes them: successive members of the same place are one element."""
        result: list[groups.Places] = []
        for (which, p), environment in zip(placed, self._environments(placed), strict=True):
            place = (which, p.node.index, p.mask if p.cpus else [], environment)
            if result and result[-1][1:] == place:
                result[-1] = (result[-1][0] + 1, *place)
            else:
                result.append((1, *place))
        return result

    def _environments(self, placed: list[tuple[int, placement.Placed]]) -> list[dict[str, str]]:
        """Return the variables that each member's place adds to its environment."""
        return [self._templates[which][1].environment_of(p) if p.environment else {} for which, p in placed]

    def _request(self, template: ProcessTemplate) -> Spawn:
        request = template.request(self._settings.name)
        # The agent keeps the last lines of stderr, for the report of a failure.
        if request.streams[2].kind == "inherit":
            request.streams[2] = Output("tee")
        return Spawn(**vars(request))

    # ---- running

    def start(self) -> None:
        """Start all members. Raises DragonProcessGroupError if they run already."""
        self._just_started = [puid for puid in self._ask(groups.StartGroup, DragonProcessGroupStartError) if puid]

    def join(self, timeout: float | None = None) -> None:
        """Wait for all members to end. Raises TimeoutError after `timeout` seconds, DragonUserCodeError if a member
        failed."""
        self._check(DragonProcessGroupJoinError)
        timeout = checked_seconds("timeout", timeout)
        self._just_started = []
        if not self._wait(timeout):
            live = self._status().live
            raise TimeoutError(f"{len(live)} members of the group still run after {timeout} s: puids {live}")
        status = None if self._settings.ignore_error_on_exit else self._status()
        if status is not None and (codes := status.failed_codes):
            shown = str(codes[:_SHOWN]) + (f" and {len(codes) - _SHOWN} more" if len(codes) > _SHOWN else "")
            raise DragonUserCodeError(
                f"Error(s) in user-provided code resulted in exit codes: {shown}; first, {status.failure}"
            )

    def _wait(self, timeout: float | None) -> bool:
        assert self._words is not None
        end = None if timeout is None else time.monotonic() + timeout
        while self._words[_LIVES]:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._words.wait(_LIVES, 1, left)
        return True

    async def _wait_with(self, wait: Callable[[_core.Words, int, int], Awaitable[object]]) -> None:
        """Wait for all members in an event loop. `wait(words, index, value)` waits while a word has that value."""
        self._check(DragonProcessGroupJoinError)
        assert self._words is not None
        while self._words[_LIVES]:
            await wait(self._words, _LIVES, 1)

    def send_signal(self, sig: int, hide_stderr: bool = False) -> None:
        """Send a signal to every live member. `hide_stderr` has no effect."""
        which = checked_signal(sig)
        self._ask(lambda number: groups.SignalGroup(number, which), DragonProcessGroupSignalError)

    def terminate(self, hide_stderr: bool = False) -> None:
        """Ask every member to end, by SIGTERM. `hide_stderr` has no effect."""
        self.send_signal(signal.SIGTERM, hide_stderr)

    def kill(self, hide_stderr: bool = False) -> None:
        """Kill every member, by SIGKILL. `hide_stderr` has no effect."""
        self.send_signal(signal.SIGKILL, hide_stderr)

    def stop(self, patience: float = 5.0) -> None:
        """Interrupt, then terminate, then kill the members, `patience` seconds apart, and wait for them to end."""
        self._just_started = []
        patience = checked_seconds("patience", patience)
        if self._number is not None:
            self._ask(lambda number: groups.StopGroup(number, patience), DragonProcessGroupSignalError)
            self._wait(3 * patience + 5)

    def stop_restart(self) -> None:
        """Stop restarting members that end."""
        self._ask(groups.StopRestart, DragonProcessGroupError)

    def close(self, patience: float = 5.0) -> None:
        """Stop the members that still run and release the group. Never raises because of a member."""
        if self._closed or self._number is None:
            self._closed = True
            return
        with suppress(LookupError, _core.DestroyedError):  # another process closed it
            if self._words is not None and self._words[_LIVES]:
                self.stop(patience)
            ask(groups.CloseGroup(self._number))
        self._closed = True

    # ---- looking

    @property
    def puids(self) -> list[int]:
        """The puids of the live members, in the order of their ranks. The first read after start() gives those of all
        members."""
        just_started, self._just_started = self._just_started, []
        if just_started or self._number is None:
            return just_started
        return self._status().live

    @property
    def inactive_puids(self) -> list[tuple[int, int]]:
        """(puid, exit code) of each member that has ended."""
        return self._status().ended

    exit_status = inactive_puids
    """The same as inactive_puids."""

    @property
    def in_error_state(self) -> bool:
        """Whether a member failed, unless the group ignores errors."""
        return self._state == State.ERROR.value

    @property
    def _state(self) -> str:
        if self._closed:
            return State.CLOSED.value
        if self._number is None:
            return State.IDLE.value
        status = self._status()
        if status.failed_codes and not self._settings.ignore_error_on_exit:
            return State.ERROR.value
        return State.RUNNING.value if status.live else State.IDLE.value

    def _check(self, error: type[DragonProcessGroupError]) -> None:
        if self._closed:
            raise DragonProcessGroupRunningError("the group was closed")
        if self._number is None:
            raise error("the group is not initialised: init() first")

    def _ask(self, request: Callable[[int], Request[_Answer]], error: type[DragonProcessGroupError]) -> _Answer:
        self._check(error)
        assert self._number is not None
        try:
            return ask(request(self._number))
        except LookupError as gone:
            raise DragonProcessGroupRunningError(str(gone)) from None
        except RuntimeError as refused:
            raise error(str(refused)) from None

    def _status(self) -> groups.Status:
        return self._ask(groups.GroupStatus, DragonProcessGroupError)
