"""The main program of the agent of a run of several nodes: it forks the zygote, then joins the run.

Modules that are imported before the zygote is forked are in every process of the node, and make every start slower.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dragon import _core
from dragon.agent.main import fork_zygote
from dragon.agent.processes.parents import become_reaper
from dragon.files import write_bytes
from dragon.infrastructure import variables
from dragon.infrastructure.errors import RunEndedError
from dragon.infrastructure.membership import Token
from dragon.infrastructure.signals import ENDING, set_for_programs
from dragon.infrastructure.system import what_to_raise
from dragon.runtime import folder as run_folder
from dragon.runtime import run as run_module

if TYPE_CHECKING:
    import logging


_NEW_MOUNTS, _NEW_UTS, _NEW_USER = 0x00020000, 0x04000000, 0x10000000
_BIND, _RECURSIVE, _SLAVE = 0x1000, 0x4000, 0x80000
_CAPABILITY_VERSION = 0x20080522
_HOSTS = "/etc/hosts"


def own_host_name(name: str, hosts: Path | None = None) -> bool:
    """Give this process and all that it starts their own host name. Returns whether that was permitted. If not, that is
    logged and the name stays. They see the file `hosts` as /etc/hosts, so that the name can be resolved; write_hosts()
    makes one. Must be called before there are threads: a user without privileges gets the name in a new user namespace,
    which a process with several threads cannot enter."""
    error = refused = _rename(name, _NEW_UTS)
    if refused:
        # A process cannot leave a user namespace, and without a mapped user it is nobody there: a child tries first.
        error = _in_child(name) or _rename(name, _NEW_USER | _NEW_UTS)
    if error:
        _log().warning(
            "%s keeps the host name %s: a name of its own is not permitted here (%s)",
            name,
            socket.gethostname(),
            os.strerror(error),
        )
    elif hosts is not None:
        _show_hosts(hosts)
    if refused and not error:
        _drop_capabilities()
    return not error


def _log() -> logging.Logger:
    from dragon.runtime.log import runtime_log  # seldom needed, and every process that is forked later would have it

    return runtime_log("node")


def write_hosts(path: Path, names: Sequence[str]) -> None:
    """Write the machine's /etc/hosts to a file, with `names` as additional names of this machine."""
    try:
        known = Path(_HOSTS).read_text()
    except OSError:
        known = ""
    write_bytes(path, f"127.0.0.1 {' '.join(names)}\n{known}".encode())


def _in_child(name: str) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(_rename(name, _NEW_USER | _NEW_UTS) & 0xFF)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _rename(name: str, namespaces: int) -> int:
    """Take a host name in new namespaces. Returns an error number, 0 on success."""
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", namespaces)
        if namespaces & _NEW_USER:
            _stay(user, group)
        socket.sethostname(name)
    except OSError as refused:
        return refused.errno or 1
    return 0


def _show_hosts(hosts: Path) -> None:
    try:
        _call("unshare", _NEW_MOUNTS)
        # Later mounts outside of the namespace are seen here, and not the other way round.
        _call("mount", None, b"/", None, _SLAVE | _RECURSIVE, None)
        _call("mount", os.fsencode(hosts), _HOSTS.encode(), None, _BIND, None)
    except OSError as refused:
        _log().info("the name %s cannot be looked up: %s", socket.gethostname(), refused)


def _drop_capabilities() -> None:
    """Drop the capabilities that a new user namespace gives."""
    _call("capset", struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24))


def _call(function: str, *arguments: object) -> None:
    """Call a function of the C library. (Python has os.unshare() from 3.12 on, and no mount().) Raises OSError."""
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _stay(user: int, group: int) -> None:
    """Map this process's user and group to themselves in the new user namespace."""
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def serve(token: Token) -> int:
    """Join the run of the token and serve it until it ends. Returns the exit code if this machine cannot."""
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
    from dragon.agent.life import join_and_serve

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
