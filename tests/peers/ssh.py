"""Three hosts with an sshd each, and a desk that has their keys."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from conftest import MARK, Site
from peers import await_that, dragon, nothing_left
from peers.lan import NETWORK, RUNTIME, Lan, permitted

__all__ = ["SshHosts", "running_hosts", "ssh_hosts", "start_hosts"]

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
PORT = 2222
NAMES = ("node1", "node2", "node3")

# A home of its own: the .bashrc of this machine's user must not affect the tests, and may not tolerate two at a time.
SERVER = f"""\
Port {PORT}
ListenAddress {{address}}
HostKey {{folder}}/{{name}}.key
AuthorizedKeysFile {{folder}}/user.key.pub
PidFile none
StrictModes no
PasswordAuthentication no
UsePAM no
MaxStartups 100
SetEnv XDG_RUNTIME_DIR={RUNTIME} HOME={{folder}}/home{{environment}}
AcceptEnv {MARK}
"""
# If an option is given twice, ssh uses the first.
HOST = """\
Host {name}
 HostName {address}
"""
# a host without an sshd at that port, and a host that does not exist
STRANGERS = f"""\
Host deaf
 HostName {NETWORK}.1
 Port 1
Host absent
 HostName {NETWORK}.99
"""
EVERY_HOST = f"""\
Host *
 Port {PORT}
 User root
 IdentityFile {{folder}}/user.key
 IdentitiesOnly yes
 UserKnownHostsFile {{folder}}/known_hosts
 SendEnv {MARK}
"""


class SshHosts:
    """Hosts that are reached by ssh from the desk of their network."""

    nodes = NAMES

    def __init__(self, lan: Lan, folder: Path, environment: str = "") -> None:
        self.lan = lan
        self.configuration = folder / "ssh_config"
        make_key(folder / "user.key")
        (folder / "home").mkdir()
        client, known = STRANGERS, ""
        for name, address in lan.addresses.items():
            make_key(folder / f"{name}.key")
            key = " ".join((folder / f"{name}.key.pub").read_text().split()[:2])
            known += f"[{address}]:{PORT} {key}\n"
            client += HOST.format(name=name, address=address)
            (folder / f"{name}.conf").write_text(
                SERVER.format(folder=folder, name=name, address=address, environment=environment)
            )
            log = folder / f"{name}.log"
            subprocess.run(lan.at(name, str(SSHD), "-f", folder / f"{name}.conf", "-E", log), check=True)
        (folder / "known_hosts").write_text(known)
        self.configuration.write_text(client + EVERY_HOST.format(folder=folder))
        for name in lan.addresses:
            log = folder / f"{name}.log"
            await_that(partial(listens, log), f"sshd of {name}")

    def start(self, site: Site, *words: str | Path) -> subprocess.Popen[str]:
        return site.start(*self.dragon("--hostlist", ",".join(self.nodes), *words))

    def dragon(self, *words: str | Path) -> list[str]:
        """Return the command line of `dragon` at the desk."""
        return self.lan.at_desk(*dragon("--ssh-config-path", self.configuration, *words))

    def leftovers(self) -> list[str]:
        return self.lan.leftovers(besides="sshd:")


def listens(log: Path) -> bool:
    """Return whether the sshd that writes this log is listening."""
    return "Server listening" in log.read_text()


def make_key(file: Path) -> None:
    """Make a key pair."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)


@contextmanager
def start_hosts(folder: Path, memory: str = "", environment: str = "") -> Iterator[SshHosts]:
    """Run three hosts for the duration of the block. `memory` is each host's shared memory, as in Lan; `environment`
    has words like NAME=value, each preceded by a space.
    """
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("there is no sshd on this machine (package openssh-server)")
    permitted()
    with Lan(folder, NAMES, memory=memory) as lan:
        yield SshHosts(lan, folder, environment)


@pytest.fixture(scope="session")
def running_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """Start three hosts for the session."""
    with start_hosts(tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


@pytest.fixture
def ssh_hosts(running_hosts: SshHosts) -> Iterator[SshHosts]:
    """Provide the hosts to a test, with nothing on them."""
    with nothing_left(running_hosts):
        yield running_hosts
