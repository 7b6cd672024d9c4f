"""The ssh launcher with a real sshd on this machine, and its behaviour if ssh fails."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from conftest import Site

OVER = Path(__file__).with_name("over.py")
SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")

pytestmark = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None, reason="there is no sshd on this machine (package openssh-server)"
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture
def ssh_config(tmp_path: Path) -> Iterator[Path]:
    """A configuration under which `first`, `second` and `third` are an sshd of this user on this machine."""
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    shutil.copy(tmp_path / "user_key.pub", tmp_path / "authorized_keys")
    port = free_port()
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host_key\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {tmp_path}/authorized_keys\nStrictModes no\nPasswordAuthentication no\n"
    )
    host_key = " ".join((tmp_path / "host_key.pub").read_text().split()[:2])
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}\n")
    config = tmp_path / "ssh_config"
    config.write_text(
        f"Host first second third\n HostName 127.0.0.1\n Port {port}\n User {getpass.getuser()}\n"
        f" IdentityFile {tmp_path}/user_key\n IdentitiesOnly yes\n UserKnownHostsFile {tmp_path}/known_hosts\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd of root locks itself in
    assert SSHD is not None
    with (tmp_path / "sshd.log").open("w") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", tmp_path / "sshd_config"], stderr=log)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except ConnectionRefusedError:
            assert server.poll() is None, (tmp_path / "sshd.log").read_text()
            time.sleep(0.02)
    yield config
    server.terminate()
    server.wait(timeout=20)


def over(site: Site, config: Path, hosts: str, *command: str) -> list[str | Path]:
    wanted = {"wlm": "ssh", "hosts": hosts.split(","), "ssh_options": ["-F", str(config)]}
    return [sys.executable, "-W", "error", OVER, msgspec.json.encode(wanted).decode(), "{}", *command]


def test_agents_start_on_the_hosts_in_the_given_order(site: Site, ssh_config: Path) -> None:
    done = site.run(*over(site, ssh_config, "first,second,third", "sh", "-c", "echo $INDEX: $NODES; echo $A; exit 3"))
    name = socket.gethostname()
    assert done.stdout.splitlines()[:1] == [f"0: {name} {name} {name}"], done.stderr
    assert done.stdout.endswith("code 3\n")


def test_the_head_has_the_environment_of_the_user(site: Site, ssh_config: Path) -> None:
    done = site.run(
        *over(site, ssh_config, "first,second", "sh", "-c", "echo $OF_THE_USER"), env={"OF_THE_USER": "yes"}
    )
    assert done.stdout == "yes\ncode 0\n", done.stderr


def test_the_error_about_an_unknown_host_has_its_name_and_the_message_of_ssh(site: Site, ssh_config: Path) -> None:
    done = site.run(*over(site, ssh_config, "first,host.invalid", "true"))
    assert done.returncode == 1
    assert "launch failed: ssh to host.invalid ended with code 255" in done.stderr
    assert "host.invalid: " in done.stderr


def test_the_error_names_all_unknown_hosts(site: Site, ssh_config: Path) -> None:
    done = site.run(*over(site, ssh_config, "host.invalid,first,other.invalid", "true"))
    assert done.returncode == 1
    assert "ssh to host.invalid ended with code 255" in done.stderr
    assert "ssh to other.invalid ended with code 255" in done.stderr


def test_a_host_that_requires_a_password_is_an_error(site: Site, ssh_config: Path) -> None:
    text = ssh_config.read_text().replace("user_key", "nothing")
    ssh_config.write_text(text)
    done = site.run(*over(site, ssh_config, "first,second", "true"))
    assert done.returncode == 1
    assert "Permission denied" in done.stderr


def test_the_token_is_not_on_a_command_line(site: Site, ssh_config: Path) -> None:
    process = site.start(*over(site, ssh_config, "first,second", "sh", "-c", "echo ready; exec sleep 60"))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    lines = [command for _, command in site.processes() if "ssh" in command or "stand_in" in command]
    assert len(lines) >= 2
    assert all(len(word) < 200 for line in lines for word in line.split())
    process.terminate()
    process.communicate(timeout=30)
