"""Leftovers of an earlier run: the next run removes them, and starts in every case."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from pathlib import Path

import pytest

from conftest import Site

HELLO = """
    from dragon.native.queue import Queue

    queue = Queue()
    queue.put("there")
    print(queue.get())
"""


def make_run(site: Site, pid: int, description: bytes | None) -> Path:
    """Make the folder of a run whose process has ended or has another start time."""
    base = Path(site.environment["XDG_RUNTIME_DIR"]) / f"dragon-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    namespace = f"{os.stat('/proc/self/ns/pid').st_ino:x}"
    folder = base / f"{pid}-1-{namespace}-abcdef"
    folder.mkdir(mode=0o700)
    if description is not None:
        (folder / "run.json").write_bytes(description)
        (folder / "run.json").chmod(0o600)
    return folder


AGENT_GONE = {"pid": 2**22 - 1, "start_time": 1}
UNREADABLE = {
    "no file": None,
    "empty": b"",
    "no JSON": b"\xff\x00",
    "of another version, which says less": json.dumps({"agent": AGENT_GONE}).encode(),
    "of another version, which says more": json.dumps({"agent": AGENT_GONE, "owner": "me", "more": []}).encode(),
    "other types": b'{"agent": 7}',
}


@pytest.mark.parametrize("description", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("options", [[], ["-m", "dragon"]], ids=["python", "dragon"])
def test_a_run_with_an_unreadable_description_is_removed_by_the_next_run(
    site: Site, description: bytes | None, options: list[str]
) -> None:
    folder = make_run(site, 2**22 - 1, description)
    ran = site.run(sys.executable, *options, site.write(HELLO))
    assert (ran.stdout, ran.stderr) == ("there\n", "")
    assert not folder.exists()


def test_a_live_run_of_another_version_is_kept_and_reported(site: Site) -> None:
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    described = {"agent": {"pid": os.getpid(), "start_time": start}, "owner": "of a later version"}
    folder = make_run(site, 2**22 - 1, json.dumps(described).encode())
    assert site.run(sys.executable, site.write(HELLO)).stdout == "there\n"
    assert folder.exists()
    listed = site.dragon("ps")
    assert f"the run in {folder} cannot be read" in listed.stderr
    assert "Traceback" not in listed.stderr
    shutil.rmtree(folder.parent)


def test_a_run_with_an_unreadable_description_is_kept_while_its_agent_listens(site: Site) -> None:
    folder = make_run(site, 2**22 - 1, b"{}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
        agent.bind(str(folder / "agent"))
        agent.listen()
        assert site.run(sys.executable, site.write(HELLO)).stdout == "there\n"
        assert folder.exists()
    assert site.run(sys.executable, site.write(HELLO)).stdout == "there\n"
    assert not folder.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="takes root, to be another user")
@pytest.mark.parametrize("kind", ["file", "link", "open to others"])
def test_a_description_that_another_user_can_write_is_not_read(site: Site, kind: str, tmp_path: Path) -> None:
    folder = make_run(site, 2**22 - 1, b"{}")
    described = folder / "run.json"
    if kind == "link":
        (tmp_path / "other").write_bytes(b"{}")
        described.unlink()
        described.symlink_to(tmp_path / "other")
    elif kind == "file":
        os.chown(described, 54321, 54321)
    else:
        described.chmod(0o666)
    ran = site.run(
        sys.executable,
        "-c",
        f"from dragon.runtime.run import join_run; from pathlib import Path; join_run(Path({str(folder)!r}))",
    )
    assert ran.returncode == 1
    assert f"RunEndedError: there is no run in {folder}" in ran.stderr
    shutil.rmtree(folder.parent)
