"""`dragon node --join -`: runs the agent of one node. It is started by launchers, not by users."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from dragon.commands import Parser
from dragon.infrastructure.membership import Token
from dragon.runtime.agent_start import is_open

TOKEN_VARIABLE = "DRAGON_JOIN"


def main(words: Sequence[str]) -> int:
    """Read the token, and run the agent until the run ends. Returns the exit code."""
    parser = Parser(prog="dragon node", description="The agent of a node; started by a launcher.")
    add = parser.add_argument
    where = "where the run's token is: - (a line of standard input), "
    where += f"environment (the variable {TOKEN_VARIABLE}), or a file, which is removed"
    add("--join", required=True, help=where)
    add("--index-from", metavar="VARIABLE", help="the variable in which the workload manager numbers the nodes")
    add("--name-from", metavar="VARIABLE", help="the variable in which the workload manager names this node")
    arguments = parser.parse_args(words)
    try:
        token = Token.decode(_text(arguments.join))
        if arguments.index_from is not None:
            token.index = int(os.environ[arguments.index_from])
        if arguments.name_from is not None:
            name = os.environ[arguments.name_from]
            # Policies name hosts as the workload manager prints them, and several of its nodes may be one machine.
            if name.partition(".")[0] != socket.gethostname().partition(".")[0]:
                token.claims.setdefault("host_name", name)
    except (OSError, ValueError, KeyError) as error:
        parser.error(f"the token of a run, or the node's index in it, is missing ({type(error).__name__}: {error})")
    _close_copies_of_streams()
    with open(os.devnull) as null:
        os.dup2(null.fileno(), 0)
    from dragon.agent.node import serve

    return serve(token)


def _text(place: str) -> str:
    if place == "-":
        return sys.stdin.readline()
    if place == "environment":
        # Removed, so that no child process inherits it.
        return os.environ.pop(TOKEN_VARIABLE, "")
    text = Path(place).read_text()
    Path(place).unlink()
    return text


def _close_copies_of_streams() -> None:
    """Close duplicates of the standard streams. The event loop of a launcher leaves them open in this process, and
    every program of the node would inherit them."""
    streams = [os.fstat(number) for number in range(3) if is_open(number)]
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and is_open(fd) and any(os.path.samestat(os.fstat(fd), stream) for stream in streams):
            os.close(fd)
