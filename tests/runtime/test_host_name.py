"""Setting a host name for a process, with and without privileges."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import dragon
from dragon.agent import node as host_name
from dragon.runtime.log import runtime_log

PROGRAM = """
import ctypes, encodings.idna, os, socket, subprocess, sys
sys.path.append(sys.argv[2])
from pathlib import Path
from dragon.agent.node import own_host_name, write_hosts
write_hosts(Path(sys.argv[3]), ["rehearsed7", "rehearsed8"])
if sys.argv[1] != "0":
    os.setgid(int(sys.argv[1])), os.setuid(int(sys.argv[1]))
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: as after logging in
permitted = own_host_name("rehearsed7", Path(sys.argv[3]))
print(permitted)
print(socket.gethostname(), subprocess.run(["uname", "-n"], capture_output=True, text=True).stdout.strip())
print(os.getuid() == int(sys.argv[1]) or sys.argv[1] == "0")
# What it starts may look into it, as processes do that join a run.
print(subprocess.run(["readlink", "-q", f"/proc/{os.getpid()}/fd/0"], stdout=subprocess.DEVNULL).returncode)
print(socket.gethostbyname("rehearsed8" if permitted else "localhost"), socket.gethostbyname("localhost"))
"""


def run(user: int, hosts: Path) -> list[str]:
    path = str(Path(dragon.__file__).parents[1])
    command = [sys.executable, "-c", PROGRAM, str(user), path, str(hosts)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=True)
    return [*done.stdout.splitlines(), done.stderr]


@pytest.mark.parametrize("user", [0, 65534])
def test_a_process_can_have_its_own_host_name(user: int) -> None:
    if user and os.getuid():
        pytest.skip("only root can become another user")
    before = socket.gethostname()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        permitted, names, same_user, seen, addresses, errors = run(user, Path(folder) / "hosts")
    if permitted == "False":
        assert names == f"{before} {before}"
        assert errors.count("\n") == 1
    else:
        assert names == "rehearsed7 rehearsed7"
    assert (same_user, seen, addresses) == ("True", "0", "127.0.0.1 127.0.0.1")
    assert socket.gethostname() == before


def test_a_process_keeps_its_host_name_with_a_warning_if_a_change_is_not_permitted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host_name, "_rename", lambda *_: 1)
    told: list[str] = []
    monkeypatch.setattr(runtime_log("node"), "warning", lambda text, *values: told.append(text % values))
    assert not host_name.own_host_name("rehearsed7")
    assert told == [
        f"rehearsed7 keeps the host name {socket.gethostname()}: a name of its own is not permitted here"
        " (Operation not permitted)"
    ]
