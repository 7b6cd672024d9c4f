"""The main program of the agent of a run of several nodes: it forks the zygote, then joins the run.

Modules that are imported before the zygote is forked are in every process of the node, and make every start slower.
"""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

from dragon import _core
from dragon.agent.main import accepting_the_gil, fork_zygote
from dragon.agent.processes.orphans import become_reaper
from dragon.infrastructure import variables
from dragon.infrastructure.errors import RunEndedError
from dragon.infrastructure.membership import Token
from dragon.infrastructure.signals import ENDING, set_for_programs
from dragon.infrastructure.system_errors import what_to_raise
from dragon.runtime import folder as run_folder
from dragon.runtime import run as run_module
from dragon.runtime.host_name import own_host_name, write_hosts


def serve(token: Token) -> int:
    """Join the run of the token and serve it until it ends. Returns the exit code if this machine cannot.

    Raises JoinError if it cannot join.
    """
    set_for_programs(signal.SIG_IGN)
    try:
        run_folder.sweep()
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # the agent handles them later, so that it can clean up
        folder = run_folder.make_folder()
    except (OSError, RunEndedError) as error:
        return _cannot(error)
    try:
        _take_host_name(token, folder)
        _core.create_arena(variables.arena_limit())
        _core.set_keeper()
        run = run_module.Run(folder, run_folder.this_process())
        run_module.serve(run)
        requests, zygote_requests = run_module.bind_sockets(folder)
        become_reaper()
        zygote, events = fork_zygote(run, zygote_requests, [requests])
    except (OSError, ValueError) as error:
        return _cannot(error, folder)
    with accepting_the_gil():
        from dragon.agent.joining import join_and_serve

    try:
        join_and_serve(token, run, zygote, events, requests)
    except (OSError, ValueError) as error:
        events.close()  # the zygote ends
        return _cannot(error, folder)


def _cannot(error: Exception, folder: Path | None = None) -> int:
    if folder is not None:
        run_folder.remove_folder(folder)
    limit = what_to_raise(getattr(error, "errno", None) or 0)
    print(f"dragon: {socket.gethostname()} cannot be a node of the run: {error}{limit}", file=sys.stderr)
    return 1


def _take_host_name(token: Token, folder: Path) -> None:
    name = token.claims.get("host_name")
    if not name:
        return
    hosts = folder / "hosts"
    write_hosts(hosts, token.claims.get("host_names", [name]))
    own_host_name(name, hosts)
