"""Another user of the machine who knows the name of a run cannot replace its data."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from pathlib import Path

import pytest

from conftest import Site
from dragon.agent.clients import Clients
from dragon.runtime.rpc import Table

takes_root = pytest.mark.skipif(os.getuid() != 0, reason="takes root, to be another user")

PROGRAM = """
    import sys
    from dragon.data.ddict import DDict
    from dragon.runtime.run import this_run

    print(this_run().folder.name, flush=True)
    sys.stdin.readline()
    try:
        dictionary = DDict(1, 1, 2**26)
        dictionary["key"] = "value"
        print(dictionary["key"])
    except Exception as error:
        print("refused", error)
"""


@takes_root
@pytest.mark.parametrize("kind", ["folder", "link", "file"])
@pytest.mark.parametrize("places", [1, 2])
def test_a_folder_that_another_user_created_first_is_not_used(
    site: Site, kind: str, places: int, tmp_path: Path
) -> None:
    temporary = site.folder / "t"
    temporary.mkdir()
    program = site.start(
        sys.executable,
        site.write(PROGRAM),
        stdin=-1,
        env={"TMPDIR": str(temporary)},
    )
    assert program.stdout is not None
    name = program.stdout.readline().strip()
    made = [Path(base) / f"dragon-0.{name}" for base in ("/dev/shm", str(temporary))[:places]]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for each in made:
        if kind == "folder":
            each.mkdir(mode=0o777)
        elif kind == "link":
            each.symlink_to(elsewhere)
        else:
            each.write_text("")
        os.chown(each, 54321, 54321, follow_symlinks=False)
    try:
        out, err = program.communicate("\n", timeout=60)
        assert (out, err) == ("value\n", "")
        assert not list(elsewhere.iterdir())
    finally:
        for each in made:
            if kind == "folder":
                shutil.rmtree(each, ignore_errors=True)  # root's run may have removed it
            else:
                each.unlink(missing_ok=True)


AS_ANOTHER = """
    import os, socket, sys
    os.setgroups([]), os.setgid(54321), os.setuid(54321)
    for name in ("agent", "zygote"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM if name == "agent" else socket.SOCK_DGRAM) as caller:
            try:
                caller.connect(f"{sys.argv[1]}/{name}")
                print("connected")
            except PermissionError:
                print("refused")
"""


@takes_root
def test_another_user_cannot_connect_to_the_sockets_of_a_run(site: Site) -> None:
    program = site.start(
        sys.executable,
        site.write("""
            import sys
            from dragon.runtime.run import this_run

            print(this_run().folder, flush=True)
            sys.stdin.readline()
        """),
        stdin=-1,
    )
    assert program.stdout is not None
    folder = program.stdout.readline().strip()
    assert site.python(AS_ANOTHER, folder).stdout.split() == ["refused", "refused"]
    program.communicate("\n", timeout=60)


@takes_root
def test_the_agent_closes_connections_of_other_users() -> None:
    """Connect to a socket outside a private folder, where only the check of the user protects the agent."""
    handled: list[object] = []

    async def serve(listener: socket.socket, caller: socket.socket) -> bytes:
        Clients(listener, 0, Table(), lambda *request: handled.append(request))
        return await asyncio.get_running_loop().sock_recv(caller, 100)

    listener, caller = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    with listener, caller:
        address = f"\0{os.urandom(8).hex()}"  # of no folder
        listener.bind(address)
        listener.listen()
        caller.setblocking(False)
        os.seteuid(54321)  # the kernel notes who a caller is as it connects
        try:
            caller.connect(address)
        finally:
            os.seteuid(0)
        assert asyncio.run(serve(listener, caller)) == b""
    assert handled == []
