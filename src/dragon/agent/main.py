"""The main program of a single node's agent: it maps the arena, forks the zygote before any thread exists, and serves
the run."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

from dragon import _core
from dragon.agent.early import Early, leave, measures
from dragon.agent.processes.parents import become_reaper
from dragon.agent.processes.zygote import Zygote
from dragon.infrastructure.signals import set_for_programs
from dragon.infrastructure.system import what_to_raise
from dragon.runtime import folder as run_folder
from dragon.runtime import run as run_module
from dragon.runtime.agent_start import SETTINGS
from dragon.runtime.folder import Owner

_LARGEST_SETTINGS = 64 * 1024  # bytes


def main() -> None:
    """Serve the run whose settings come from the process that starts it, until that ends."""
    set_for_programs(signal.SIG_IGN)
    connection = socket.socket(fileno=SETTINGS)
    data, descriptors, _, _ = socket.recv_fds(connection, _LARGEST_SETTINGS, 3)
    if not data:
        return  # that process has ended, or could not start a run
    settings = json.loads(data)
    folder = Path(settings["folder"])
    arena, processes, zygote_requests = descriptors
    for each in (processes, zygote_requests):
        os.set_inheritable(each, False)  # recv_fds() of Python 3.11 takes no flags
    # The arena replaces the connection: who opens this descriptor of the agent gets an error or the arena.
    connection.detach()
    _core.open_arena(os.dup2(arena, run_module.ARENA, inheritable=False))
    os.close(arena)
    _core.set_bell_folder(str(folder))
    _core.set_keeper()
    run = run_module.Run(folder, run_folder.this_process(), label=settings["label"])
    run_module.serve(run)
    requests = socket.socket(fileno=processes)
    become_reaper()
    try:
        zygote, events = fork_zygote(run, socket.socket(fileno=zygote_requests), [requests])
    except OSError as error:
        run_folder.remove_folder(folder)
        print(f"dragon: the run cannot start: {error}{what_to_raise(error.errno or 0)}", file=sys.stderr)
        sys.exit(1)
    early = Early(folder, Owner(*settings["owner"]))
    if not measures() and early.ends(requests, events, settings["idle"]):
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
        Zygote(requests, there, run).serve_for_ever()
    there.close()
    requests.close()
    return zygote, here
