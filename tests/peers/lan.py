"""Hosts on this machine, isolated from each other as far as its kernel permits.

Each has a name, an address, processes and a `/run` of its own, and a cable to a switch. The desk, where users sit, is a
network of its own too, and contains the switch. All of it is kept by processes that read from this one: it vanishes
when they or this process end, for whatever reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

__all__ = ["NETWORK", "RUNTIME", "Lan", "permitted"]

NETWORK = "10.77.0"
RUNTIME = f"/run/private-{os.getuid()}"  # of the user, on each host

_NEW_HOST = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
_NEW_DESK = ["unshare", "--net"]
_HOST = """
hostname "$1"
mount --bind "$2" /etc/hosts
mount -t tmpfs -o size=16m run /run
[ -z "$4" ] || mount -t tmpfs -o "size=$4" shm /dev/shm
mkdir -p -m 0700 /run/sshd "$3"
ip link set lo up
echo ready
read -r end
"""
# A switch without an address of its own takes that of one of its cables, and another one when that cable is changed.
_SWITCH = f"""
ip link set lo up
ip link add name desk address 02:00:00:00:00:fe type bridge
ip addr add {NETWORK}.254/24 dev desk
ip link set desk up
echo ready
read -r end
"""


def permitted() -> None:
    """Skip the test if this machine cannot have such hosts."""
    missing = [name for name in ("unshare", "nsenter", "ip", "tc") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (packages util-linux, iproute2)")
    tried = subprocess.run([*_NEW_HOST, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"namespaces are not permitted here: {tried.stderr.strip()}")


class Lan:
    """Hosts that resolve the names of each other, also as NAME.`domain` if a domain is given. If `memory` is given
    (such as "256m"), each has that much shared memory of its own; otherwise they share this machine's.
    """

    def __init__(self, folder: Path, names: Sequence[str], domain: str = "", memory: str = "") -> None:
        self._memory = memory
        self.addresses = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, 1)}
        self._hosts = folder / "hosts"
        lines = [f"{at} {name}.{domain} {name}" if domain else f"{at} {name}" for name, at in self.addresses.items()]
        self._hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        self._holders: dict[str, subprocess.Popen[str]] = {}
        self._all = ExitStack()

    def __enter__(self) -> Lan:
        with ExitStack() as built:
            built.callback(self._end)
            self._desk = self._hold("the desk", _NEW_DESK, _SWITCH)
            for name, address in self.addresses.items():
                host = self._hold(name, _NEW_HOST, _HOST, name, str(self._hosts), RUNTIME, self._memory)
                cable = ["ip", "link", "add", "name", name, "netns", str(self._desk.pid), "type", "veth"]
                run(*cable, "peer", "name", "eth0", "netns", str(host.pid))
                run(*self.at(name, "ip", "addr", "add", f"{address}/24", "dev", "eth0"))
                run(*self.at(name, "ip", "link", "set", "dev", "eth0", "up"))
                run(*self.at_desk("ip", "link", "set", "dev", name, "master", "desk", "up"))
            self._all = built.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._all.close()

    def at(self, name: str, *command: str | Path) -> list[str]:
        """Return `command` wrapped so that it runs at a host."""
        pid = self._holders[name].pid
        # The first process of the pid namespace is a child of the holder, which is outside.
        inside = ["nsenter", f"--target={pid}", "--net", "--uts", "--mount", f"--pid=/proc/{pid}/ns/pid_for_children"]
        return [*inside, *map(str, command)]

    def at_desk(self, *command: str | Path) -> list[str]:
        """Return `command` wrapped so that it runs at the desk."""
        return ["nsenter", f"--net=/proc/{self._desk.pid}/ns/net", *map(str, command)]

    def processes(self, name: str) -> dict[int, str]:
        """Return the commands that run at a host, by their process ids outside of it."""
        own = os.readlink(f"/proc/{self._holders[name].pid}/ns/pid_for_children")
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{entry}/ns/pid") == own:
                    found[int(entry)] = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # the process has ended
                continue
        return {pid: command for pid, command in found.items() if command}

    def files(self, name: str) -> list[str]:
        """Return the files of users in `/run` at a host, and in its shared memory if it has its own."""
        found = []
        for folder in [RUNTIME, *(["/dev/shm"] if self._memory else [])]:
            done = subprocess.run(self.at(name, "ls", "-A", folder), capture_output=True, text=True, check=True)
            found += done.stdout.split()
        return found

    def leftovers(self, besides: str = "sh -ec") -> list[str]:
        """Return what is left at the hosts, except commands that begin with `besides`."""
        left = []
        for name in self.addresses:
            commands = self.processes(name).values()
            left += [f"{name}: {command}" for command in commands if not command.startswith(("sh -ec", besides))]
            left += [f"{name}: {file}" for file in self.files(name)]
        return left

    @contextmanager
    def cut(self, name: str) -> Iterator[None]:
        """Unplug the cable of a host from the switch for the duration of the block."""
        run(*self.at_desk("ip", "link", "set", "dev", name, "down"))
        try:
            yield
        finally:
            run(*self.at_desk("ip", "link", "set", "dev", name, "up"))

    @contextmanager
    def parted(self, one: str, other: str) -> Iterator[None]:
        """Drop all traffic between two hosts for the duration of the block; other traffic passes, and no interface goes
        down.
        """
        with self.deaf(one, other), self.deaf(other, one):
            yield

    @contextmanager
    def deaf(self, name: str, to: str) -> Iterator[None]:
        """Drop everything that the host `to` sends to a host for the duration of the block; the other direction
        passes.
        """
        address = self.addresses[name]
        nowhere = ["lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent"]
        run(*self.at(to, "ip", "neigh", "replace", address, *nowhere))
        try:
            yield
        finally:
            run(*self.at(to, "ip", "neigh", "del", address, "dev", "eth0"))

    @contextmanager
    def delayed(self, name: str, seconds: float) -> Iterator[None]:
        """Delay every packet to and from a host for the duration of the block."""
        if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            pytest.skip("this kernel has no tap devices")
        carrying = self.at_desk(sys.executable, Path(__file__).with_name("cable.py"), name, "desk", str(seconds))
        with subprocess.Popen(carrying, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cable:
            assert cable.stdout is not None
            assert cable.stdin is not None
            assert cable.stdout.readline() == "ready\n"
            yield
            cable.stdin.close()
            assert cable.wait(timeout=20) == 0

    @contextmanager
    def shaped(self, name: str, rate: str) -> Iterator[None]:
        """Limit the cable of a host to `rate`, such as 10mbit, for the duration of the block."""
        ends = [(self.at_desk, name), (lambda *words: self.at(name, *words), "eth0")]
        with ExitStack() as undoing:
            for there, device in ends:
                limit = ["tbf", "rate", rate, "burst", "16kb", "latency", "400ms"]
                command = there("tc", "qdisc", "add", "dev", device, "root", *limit)
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if "qdisc kind is unknown" in done.stderr:
                    pytest.skip("this kernel has no tbf")
                assert done.returncode == 0, done.stderr
                undoing.callback(run, *there("tc", "qdisc", "del", "dev", device, "root"))
            yield

    @contextmanager
    def full(self, name: str, folder: str) -> Iterator[None]:
        """Fill a file system of a host for the duration of the block."""
        filling = f"head -c 10G /dev/zero > {folder}/filler 2> /dev/null"
        subprocess.run(self.at(name, "sh", "-c", filling), check=False)  # fails once the file system is full
        try:
            yield
        finally:
            run(*self.at(name, "rm", f"{folder}/filler"))

    def switch_off(self, name: str) -> None:
        """Kill everything that runs at a host at once, and remove it from the network."""
        holder = self._holders[name]
        holder.kill()
        holder.wait(timeout=20)

    def _hold(self, what: str, namespaces: list[str], setup: str, *arguments: str) -> subprocess.Popen[str]:
        holder = subprocess.Popen(
            [*namespaces, "sh", "-ec", setup, what, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._holders[what] = holder
        assert holder.stdout is not None
        said = holder.stdout.readline()
        assert said == "ready\n", f"{what}: {said}"
        return holder

    def _end(self) -> None:
        for holder in self._holders.values():
            holder.communicate(timeout=20)


def run(*command: str) -> None:
    """Run a command, which must succeed."""
    subprocess.run(command, check=True)
