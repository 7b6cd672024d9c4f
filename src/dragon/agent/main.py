"""The start of an agent: the arena is mapped, the zygote forked before anything could start a thread, the loop run."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from dragon import _core
from dragon.runtime import folder as run_folder
from dragon.runtime import run as run_module
from dragon.runtime.folder import FrontEnd, Owner, RunInfo

__all__ = ["become_reaper", "fork_zygote", "main"]

_PR_SET_CHILD_SUBREAPER = 36
_ARENA, _AGENT_SOCKET, _ZYGOTE_SOCKET = 3, 4, 5


def main(settings: dict[str, Any]) -> None:
    """Serve the run that `settings` describes, until its owner ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder = Path(settings["folder"])
    owner = Owner(*settings["owner"])
    for fd in (_ARENA, _AGENT_SOCKET, _ZYGOTE_SOCKET):
        os.set_inheritable(fd, False)
    _core.open_arena(_ARENA)
    _core.set_bell_folder(str(folder))
    _core.set_keeper()
    me = run_folder.this_process()
    front_end = FrontEnd(owner, run_folder.this_machine()) if settings["front_end"] else None
    RunInfo(
        owner=owner,
        agent=me,
        arena_fd=_ARENA,
        command=settings["command"],
        started=time.time(),
        front_end=front_end,
    ).write(folder)
    run = run_module.Run(folder, me, label=settings["label"])
    run_module.serve(run)
    requests = socket.socket(fileno=_AGENT_SOCKET)
    become_reaper()
    zygote, events = fork_zygote(run, socket.socket(fileno=_ZYGOTE_SOCKET), [requests])
    from dragon.agent.server import Agent

    Agent(run, zygote, events, requests, owner=owner).serve_for_ever()


def become_reaper() -> None:
    """What loses its parents below this process comes to it."""
    _core.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def fork_zygote(
    run: run_module.Run, requests: socket.socket, unwanted: list[socket.socket]
) -> tuple[int, socket.socket]:
    """Fork the zygote, which gets `requests` and none of the `unwanted`; its process id and the agent's end to it."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    zygote = os.fork()
    if zygote == 0:
        here.close()
        for each in unwanted:
            each.close()
        from dragon.agent.zygote import Zygote

        Zygote(requests, there, run).serve_for_ever()
    there.close()
    requests.close()
    return zygote, here
