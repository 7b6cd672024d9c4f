"""The main program of a single node's agent: it maps the arena, forks the zygote before any thread exists, and serves
the run."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from dragon import _core
from dragon.agent.early import Early, leave, measures
from dragon.agent.processes.parents import become_reaper
from dragon.infrastructure.signals import set_for_programs
from dragon.infrastructure.system import what_to_raise
from dragon.runtime import folder as run_folder
from dragon.runtime import run as run_module
from dragon.runtime.folder import Owner


def main(settings: dict[str, Any]) -> None:
    """Serve the run that `settings` describes, until its owner ends."""
    set_for_programs(signal.SIG_IGN)
    folder = Path(settings["folder"])
    for fd in (run_module.ARENA, run_module.AGENT_SOCKET, run_module.ZYGOTE_SOCKET):
        os.set_inheritable(fd, False)
    _core.open_arena(run_module.ARENA)
    _core.set_bell_folder(str(folder))
    _core.set_keeper()
    run = run_module.Run(folder, run_folder.this_process(), label=settings["label"])
    run_module.serve(run)
    requests = socket.socket(fileno=run_module.AGENT_SOCKET)
    become_reaper()
    try:
        zygote, events = fork_zygote(run, socket.socket(fileno=run_module.ZYGOTE_SOCKET), [requests])
    except OSError as error:
        run_folder.remove_folder(folder)
        print(f"dragon: the run cannot start: {error}{what_to_raise(error.errno or 0)}", file=sys.stderr)
        sys.exit(1)
    early = Early(Owner(*settings["owner"]))
    if settings["waits"] and not measures() and early.ends(requests, events):
        leave(run, zygote, events, early)
    from dragon.agent.life import Beginning, serve_for_ever

    serve_for_ever(Beginning(run, zygote, events, requests, early))


def fork_zygote(
    run: run_module.Run, requests: socket.socket, unwanted: list[socket.socket]
) -> tuple[int, socket.socket]:
    """Fork the zygote, which gets `requests` and none of the `unwanted`."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    zygote = os.fork()
    if zygote == 0:
        here.close()
        for each in unwanted:
            each.close()
        from dragon.agent.processes.zygote import Zygote

        Zygote(requests, there, run).serve_for_ever()
    there.close()
    requests.close()
    return zygote, here
