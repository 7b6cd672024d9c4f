"""Faults that are injected into hosts while clients work on them, in a sequence drawn from a seed.

At most one host is lost, so that one of two copies of anything survives. A host is lost if it is killed, or if it is
paused or cut off for so long that the others continue without it. No host is lost while two hosts do not reach each
other for long, because the front end may then remove a copy from one of them. The first host, on which the program
itself runs, is never lost.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import psutil
import pytest

from dragon.infrastructure.variables import ARENA_SIZE
from jepsen.clients import wanted
from peers.connections import break_connections
from peers.lan import RUNTIME, Lan
from peers.ssh import SshHosts, start_hosts

__all__ = ["Nemesis", "start_victims"]

_SHORT = 0.3, 2.0  # seconds that a host may be unreachable without being lost: it is lost after about four
_AWAY = 8.0, 12.0  # seconds unreachable after which a host is lost
_PARTED_LONG = 14.0, 20.0  # seconds after which one of two hosts that do not reach each other keeps no copy
_REPAIR = 8.0  # seconds that copying lost replicas may take
_MEMORY, _ARENA = "192m", "64M"  # of each host, for dictionaries and for all else; a run takes half of it
_CLOCK = "/run/clock"  # on each host, seconds by which its clock is wrong
_NOT_OURS = ("sh -ec", "sshd:")  # what makes the host


@contextmanager
def start_victims(folder: Path) -> Iterator[SshHosts]:
    """Start three hosts on which all faults are possible, for the duration of the block."""
    library = folder / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", f'-DCLOCK="{_CLOCK}"', "-o", library, source], check=True)
    with start_hosts(folder, _MEMORY, f" LD_PRELOAD={library} {ARENA_SIZE}={_ARENA}") as hosts:
        for host in hosts.nodes:
            subprocess.run(_set_clock(hosts.lan, host, 0), check=True)
        yield hosts


def _set_clock(lan: Lan, host: str, seconds: int) -> list[str]:
    """Return the command that makes the clock of a host wrong by `seconds`."""
    octal = "".join(f"\\{byte:03o}" for byte in seconds.to_bytes(8, "little", signed=True))
    return lan.at(host, "sh", "-c", f"printf '{octal}' | dd of={_CLOCK} conv=notrunc status=none")


@dataclass
class Nemesis:
    """Inject faults into the hosts of a run whose clients write their process ids to `folder`.

    `front_end` is the process id of the run's front end.

    `done` has what was done and when, by the clock of the history; `lost` the hosts without which the others may have
    continued; `missing` the faults that this kernel cannot have.
    """

    lan: Lan
    folder: Path
    seed: str
    front_end: int
    done: list[tuple[int, str]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._hosts = list(self.lan.addresses)
        self._wrecked: list[str] = []
        self._calm_until = 0.0  # no host may be unreachable before this time

    def work(self, seconds: float) -> None:
        """Inject one fault after the other for `seconds`; afterwards all faults that can be are undone."""
        end = time.monotonic() + seconds
        great = self._chance.choice([*[self._lose_a_host] * 3, self._part_for_long, self._part_from_all, None])
        great_at = time.monotonic() + self._chance.uniform(0.1, 0.4) * seconds
        while time.monotonic() < end:
            if great is not None and time.monotonic() > great_at:
                great()
                great = None
            else:
                self._do_something([*self._small, *self._middle])
                time.sleep(self._chance.uniform(0.2, 1.5))

    def _do_something(self, what: list[Callable[[], None]]) -> None:
        self._chance.choice(what)()

    @property
    def _small(self) -> list[Callable[[], None]]:
        return [self._kill_a_process, self._stop_a_process]

    @property
    def _middle(self) -> list[Callable[[], None]]:
        away = [self._pause_a_host, self._stop_an_agent, self._cut_a_host]
        return [
            *(away if time.monotonic() > self._calm_until else []),
            *[self._part_two, self._part_one_way, self._slow_a_host_down, self._delay_a_host, self._break_connections],
            *[self._fill_memory, self._use_up_memory, self._fill_disk, self._set_a_clock],
        ]

    # ---- small faults, which may happen during others

    def _kill_a_process(self) -> None:
        host, pid = self._a_process()
        if pid and self._tell(host, "KILL", pid):
            self._note(f"killed a process of {host}")

    def _stop_a_process(self) -> None:
        host, pid = self._a_process()
        if pid and self._tell(host, "STOP", pid):
            seconds = self._chance.uniform(0.5, 6)
            with self._noted(f"stopped a process of {host}", seconds):
                time.sleep(seconds)
            self._tell(host, "CONT", pid)

    def _a_process(self) -> tuple[str, str]:
        """Choose a process of clients, by its id on its host."""
        host = self._chance.choice(self._living())
        files = sorted(self.folder.glob(f"{host}.*.pid"), key=lambda file: file.stat().st_mtime)[-2:]
        return host, self._chance.choice(files).read_text() if files else ""

    def _tell(self, host: str, what: str, pid: str) -> bool:
        """Send a signal to a client process; return whether it exists."""
        command = self.lan.at(host, "kill", f"-{what}", pid)
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    # ---- faults that the whole run survives

    def _pause_a_host(self) -> None:
        host = self._chance.choice(self._living())
        self._hold(self._stopped(self._all_of(host)), f"paused {host}", self._chance.uniform(*_SHORT))

    def _stop_an_agent(self) -> None:
        host = self._chance.choice(self._living())
        self._hold(self._stopped(self._agents_of(host)), f"stopped the agent of {host}", self._chance.uniform(*_SHORT))

    def _cut_a_host(self) -> None:
        host = self._chance.choice(self._living())
        self._hold(self.lan.cut(host), f"cut {host} off", self._chance.uniform(*_SHORT))

    def _part_two(self) -> None:
        one, other = self._chance.sample(self._hosts, 2)
        self._hold(self.lan.parted(one, other), f"parted {one} and {other}", self._chance.uniform(1, 5), busy=True)

    def _part_one_way(self) -> None:
        one, other = self._chance.sample(self._hosts, 2)
        what = f"let nothing pass from {one} to {other}"
        self._hold(self.lan.deaf(other, one), what, self._chance.uniform(1, 5), busy=True)

    def _slow_a_host_down(self) -> None:
        host = self._chance.choice(self._living())
        self._hold(self.lan.shaped(host, "1mbit"), f"slowed {host} down", self._chance.uniform(1, 4), busy=True)

    def _delay_a_host(self) -> None:
        host = self._chance.choice(self._living())
        late = self._chance.uniform(0.02, 0.3)
        self._hold(
            self.lan.delayed(host, late), f"delayed {host} by {late:.2f} s", self._chance.uniform(1, 4), busy=True
        )

    def _break_connections(self) -> None:
        """Break the connections between hosts, and those to the front end, again and again; no host is lost."""
        self._hold(self._broken(), "broke connections", self._chance.uniform(1, 4), busy=True)

    def _fill_memory(self) -> None:
        """Fill the memory of dictionaries."""
        self._fill("memory", "/dev/shm")

    def _use_up_memory(self) -> None:
        """Have a client use up the memory of all other objects."""
        host = self._chance.choice(self._living())
        full = self._used_up(wanted(self.folder, host))
        self._hold(full, f"used up the memory of {host}", self._chance.uniform(1, 4), busy=True)

    def _fill_disk(self) -> None:
        self._fill("disk", RUNTIME)

    def _fill(self, what: str, folder: str) -> None:
        host = self._chance.choice(self._living())
        self._hold(self.lan.full(host, folder), f"filled the {what} of {host}", self._chance.uniform(1, 4), busy=True)

    def _set_a_clock(self) -> None:
        """Set the clock of a host, permanently."""
        host = self._chance.choice(self._living())
        seconds = round(self._chance.choice([-1, 1]) * 10 ** self._chance.uniform(0, 7.5))
        subprocess.run(_set_clock(self.lan, host, seconds), check=True)
        self._note(f"set the clock of {host} to {seconds:+} s")

    # ---- faults that the run does not survive whole

    def _lose_a_host(self) -> None:
        host = self._chance.choice(self._hosts[1:])
        how = self._chance.choice(["killed", "killed the agent of", "paused", "cut off", "cut off and paused"])
        self.lost.append(host)
        if how.startswith("killed"):
            for pid in self._agents_of(host) if "agent" in how else self._all_of(host):
                _signal(pid, signal.SIGKILL)
            self._wrecked.append(host)
            self._note(f"{how} {host}")
            self._during(_REPAIR)
        else:
            self._take_away(host, how)
        self._calm_until = time.monotonic() + _REPAIR

    def _take_away(self, host: str, how: str) -> None:
        """Cut off a host, pause it, or both, until it is lost.

        A host that was paused and continues without its cable is not told by any other host that it is lost.
        """
        away, seconds = self._stopped(self._all_of(host)), self._chance.uniform(*_AWAY)
        with ExitStack() as mending:
            if how.startswith("cut off"):
                mending.enter_context(self.lan.cut(host))
            if how.endswith("paused"):
                self._hold(away, f"{how} {host} until it was lost", seconds, busy=True)
                seconds = 2.0
            if how.startswith("cut off"):
                self._hold(mending, f"left {host} without its cable", seconds, busy=True)

    def _part_for_long(self) -> None:
        one, other = self._chance.sample(self._hosts, 2)
        seconds = self._chance.uniform(*_PARTED_LONG)
        if self._chance.random() < 0.5:
            self._hold(self.lan.parted(one, other), f"parted {one} and {other} for long", seconds, busy=True)
        else:
            what = f"let nothing pass from {one} to {other} for long"
            self._hold(self.lan.deaf(other, one), what, seconds, busy=True)
        self._calm_until = float("inf")  # when both have copies again only they know

    def _part_from_all(self) -> None:
        """Cut off a host from all others except the front end, which decides which hosts are lost."""
        one = self._chance.choice(self._hosts)
        # The decisions of the front end arrive there later than elsewhere, except on the host that must not be lost.
        late = self._chance.choice([0, 0.7]) if one != self._hosts[0] else 0
        with ExitStack() as mending:
            for other in self._hosts:
                if other != one:
                    mending.enter_context(self.lan.parted(one, other))
            if late and self._enter(mending, self.lan.delayed(one, late)):
                self.lost.append(one)  # a frame that is sent again may arrive too late
            seconds = self._chance.uniform(*_PARTED_LONG)
            self._hold(mending, f"parted {one}, late by {late:g} s, from all hosts for long", seconds, busy=True)
        self._calm_until = float("inf")

    def end_all(self) -> None:
        """Kill all processes of a run and remove its files, so that the next run starts clean."""
        for host in self._hosts:
            for pid in self._all_of(host):
                _signal(pid, signal.SIGKILL)
        self._wrecked = list(self._hosts)
        self.clean_up()

    def clean_up(self) -> None:
        """Remove the files left on a host on which everything was killed, as a restart of the host would."""
        for host in self._wrecked:
            subprocess.run(self.lan.at(host, "find", RUNTIME, "-mindepth", "1", "-delete"), check=True)
            subprocess.run(self.lan.at(host, "find", "/dev/shm", "-mindepth", "1", "-delete"), check=True)

    # ---- how it is done

    def _living(self) -> list[str]:
        return [host for host in self._hosts if host not in self.lost]

    def _all_of(self, host: str) -> list[int]:
        return [pid for pid, command in self.lan.processes(host).items() if not command.startswith(_NOT_OURS)]

    def _agents_of(self, host: str) -> list[int]:
        """Return the ids of the agents on a host: processes of a run have the agent's command line and are its
        children.
        """
        found = [pid for pid, command in self.lan.processes(host).items() if "dragon node" in command]
        return [pid for pid in found if _parent(pid) not in [None, *found]]

    def _hold(self, fault: AbstractContextManager[object], what: str, seconds: float, busy: bool = False) -> None:
        """Keep a fault for `seconds`; if `busy`, inject small faults meanwhile."""
        with ExitStack() as mending:
            if not self._enter(mending, fault):
                return
            with self._noted(what, seconds):
                if busy:
                    self._during(seconds)
                else:
                    time.sleep(seconds)

    def _enter(self, mending: ExitStack, fault: AbstractContextManager[object]) -> bool:
        """Begin a fault, unless this machine cannot have it; return whether it has begun."""
        try:
            mending.enter_context(fault)
        except pytest.skip.Exception as error:
            self.missing.add(str(error))
            return False
        return True

    def _during(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._chance.random() < 0.3:
                self._do_something(self._small)
            time.sleep(min(max(end - time.monotonic(), 0), self._chance.uniform(0.5, 2)))

    @contextmanager
    def _stopped(self, pids: list[int]) -> Iterator[None]:
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                _signal(pid, signal.SIGCONT)

    @contextmanager
    def _broken(self) -> Iterator[None]:
        """Break all connections of the run between hosts at random times, for the duration of the block."""
        over, chance = Event(), random.Random(self._chance.random())
        ends = [self.front_end, *(pid for host in self._living() for pid in self._agents_of(host))]

        def work() -> None:
            while not over.wait(chance.choice([0.02, 0.1, 0.4])):
                break_connections(ends)

        with ThreadPoolExecutor(1) as breaking:
            working = breaking.submit(work)
            try:
                yield
            finally:
                over.set()
            working.result()

    @contextmanager
    def _used_up(self, wish: Path) -> Iterator[None]:
        wish.touch()
        try:
            yield
        finally:
            wish.unlink()

    @contextmanager
    def _noted(self, what: str, seconds: float) -> Iterator[None]:
        self._note(f"{what} ({seconds:.1f} s)")
        yield
        self.done.append((time.monotonic_ns(), f"end of: {what}"))

    def _note(self, what: str) -> None:
        self.done.append((time.monotonic_ns(), what))


def _parent(pid: int) -> int | None:
    try:
        return psutil.Process(pid).ppid()
    except psutil.NoSuchProcess:
        return None  # it has ended


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it has ended by itself
