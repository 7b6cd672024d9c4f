"""What is done to hosts while clients work on them: a sequence of faults, drawn from a seed.

At most one host is lost, so that of two copies of anything one is left: it is killed, or paused or cut off for so long
that the others go on without it. No host is lost while two do not reach each other for long, as the front end may take
a copy from one of them then. The first host, on which the program itself runs, is not lost.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from dragon.infrastructure.variables import ARENA_SIZE
from jepsen.clients import wanted
from peers.lan import RUNTIME, Lan
from peers.ssh import SshHosts, start_hosts

__all__ = ["Nemesis", "start_victims"]

_SHORT = 0.3, 2.0  # seconds that a host may be away without being lost: it is after about four
_AWAY = 8.0, 12.0  # seconds after which it is lost
_PARTED_LONG = 14.0, 20.0  # seconds after which one of two that do not reach each other keeps no copy
_REPAIR = 8.0  # seconds that copying what was lost may take
_MEMORY, _ARENA = "192m", "64M"  # of each host, for dictionaries and for all else; a run takes half of it
_CLOCK = "/run/clock"  # on each host, by how much its clock is wrong
_NOT_OURS = ("sh -ec", "sshd:")  # what makes the host


@contextmanager
def start_victims(folder: Path) -> Iterator[SshHosts]:
    """Three hosts to which all this can be done, for the time of the block."""
    library = folder / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", f'-DCLOCK="{_CLOCK}"', "-o", library, source], check=True)
    with start_hosts(folder, _MEMORY, f" LD_PRELOAD={library} {ARENA_SIZE}={_ARENA}") as hosts:
        for host in hosts.nodes:
            subprocess.run(_set_clock(hosts.lan, host, 0), check=True)
        yield hosts


def _set_clock(lan: Lan, host: str, seconds: int) -> list[str]:
    """The command by which the clock of a host is wrong by so many seconds."""
    octal = "".join(f"\\{byte:03o}" for byte in seconds.to_bytes(8, "little", signed=True))
    return lan.at(host, "sh", "-c", f"printf '{octal}' | dd of={_CLOCK} conv=notrunc status=none")


@dataclass
class Nemesis:
    """Does it to the hosts of a run whose clients note their process ids in `folder`.

    `done` says what was done and when, by the clock of the history; `lost` which hosts the others may have gone on
    without, `missing` what this kernel cannot do.
    """

    lan: Lan
    folder: Path
    seed: str
    done: list[tuple[int, str]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._hosts = list(self.lan.addresses)
        self._wrecked: list[str] = []
        self._calm_until = 0.0  # no host may be away before

    def work(self, seconds: float) -> None:
        """Do one thing after the other for that long; all is mended then, but for what cannot be."""
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
            *[self._part_two, self._part_one_way, self._slow_a_host_down, self._delay_a_host],
            *[self._fill_memory, self._use_up_memory, self._fill_disk, self._set_a_clock],
        ]

    # ---- small ones, which may happen during others

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
        """One with clients, by its id on its host."""
        host = self._chance.choice(self._living())
        files = sorted(self.folder.glob(f"{host}.*.pid"), key=lambda file: file.stat().st_mtime)[-2:]
        return host, self._chance.choice(files).read_text() if files else ""

    def _tell(self, host: str, what: str, pid: str) -> bool:
        """Whether there is such a process."""
        command = self.lan.at(host, "kill", f"-{what}", pid)
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    # ---- those that a run outlives whole

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

    def _fill_memory(self) -> None:
        """Fill the memory in which dictionaries are."""
        self._fill("memory", "/dev/shm")

    def _use_up_memory(self) -> None:
        """Have a client use up the memory in which all other objects are."""
        host = self._chance.choice(self._living())
        full = self._used_up(wanted(self.folder, host))
        self._hold(full, f"used up the memory of {host}", self._chance.uniform(1, 4), busy=True)

    def _fill_disk(self) -> None:
        self._fill("disk", RUNTIME)

    def _fill(self, what: str, folder: str) -> None:
        host = self._chance.choice(self._living())
        self._hold(self.lan.full(host, folder), f"filled the {what} of {host}", self._chance.uniform(1, 4), busy=True)

    def _set_a_clock(self) -> None:
        """Set the clock of a host, which stays so."""
        host = self._chance.choice(self._living())
        seconds = round(self._chance.choice([-1, 1]) * 10 ** self._chance.uniform(0, 7.5))
        subprocess.run(_set_clock(self.lan, host, seconds), check=True)
        self._note(f"set the clock of {host} to {seconds:+} s")

    # ---- those that it does not

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
        """When one that was paused goes on without its cable, it hears from nobody that it is lost."""
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
        """The front end, which decides who is lost, reaches it."""
        one = self._chance.choice(self._hosts)
        # What the front end has decided arrives there later than elsewhere; but for the host that must not be lost.
        late = self._chance.choice([0, 0.7]) if one != self._hosts[0] else 0
        with ExitStack() as mending:
            for other in self._hosts:
                if other != one:
                    mending.enter_context(self.lan.parted(one, other))
            if late and self._enter(mending, self.lan.delayed(one, late)):
                self.lost.append(one)  # a frame that is sent again may be too late
            seconds = self._chance.uniform(*_PARTED_LONG)
            self._hold(mending, f"parted {one}, late by {late:g} s, from all hosts for long", seconds, busy=True)
        self._calm_until = float("inf")

    def end_all(self) -> None:
        """End all that is left of a run, so that the next one finds none of it."""
        for host in self._hosts:
            for pid in self._all_of(host):
                _signal(pid, signal.SIGKILL)
        self._wrecked = list(self._hosts)
        self.clean_up()

    def clean_up(self) -> None:
        """Take away the files that are left at a host on which everything was killed, as its restart would."""
        for host in self._wrecked:
            subprocess.run(self.lan.at(host, "find", RUNTIME, "-mindepth", "1", "-delete"), check=True)
            subprocess.run(self.lan.at(host, "find", "/dev/shm", "-mindepth", "1", "-delete"), check=True)

    # ---- how it is done

    def _living(self) -> list[str]:
        return [host for host in self._hosts if host not in self.lost]

    def _all_of(self, host: str) -> list[int]:
        return [pid for pid, command in self.lan.processes(host).items() if not command.startswith(_NOT_OURS)]

    def _agents_of(self, host: str) -> list[int]:
        """All processes of a run there are called as the agent is, and come from it."""
        found = [pid for pid, command in self.lan.processes(host).items() if "dragon node" in command]
        return [pid for pid in found if _parent(pid) not in [None, *found]]

    def _hold(self, fault: AbstractContextManager[object], what: str, seconds: float, busy: bool = False) -> None:
        """Have a fault for so long; `busy`, with small ones meanwhile."""
        with ExitStack() as mending:
            if not self._enter(mending, fault):
                return
            with self._noted(what, seconds):
                if busy:
                    self._during(seconds)
                else:
                    time.sleep(seconds)

    def _enter(self, mending: ExitStack, fault: AbstractContextManager[object]) -> bool:
        """Begin a fault, unless this machine cannot have it; whether it has begun."""
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
