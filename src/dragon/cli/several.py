"""Starts a run over several nodes: passes the options of `dragon` to the front end."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
from typing import TYPE_CHECKING

from dragon.infrastructure import configuration, variables
from dragon.infrastructure.system import what_to_raise

if TYPE_CHECKING:
    from dragon.launcher.base import Launcher


def run(launcher: Launcher, command: list[str], arguments: argparse.Namespace) -> int:
    """Run the program to its end. Returns its exit code, negative for a signal. Raises LaunchError."""
    import msgspec
    import uvloop

    from dragon.launcher import frontend
    from dragon.launcher.base import LaunchError
    from dragon.launcher.choice import carried
    from dragon.runtime.folder import FrontEnd, this_machine, this_process

    environment = carried()
    claims = {"transport": _transport(arguments.transport)}
    if arguments.network_prefix:
        claims["network_prefix"] = arguments.network_prefix
    settings = {
        "label": arguments.label,
        "variables": {
            variables.GRACE: str(variables.grace()),
            **{name: os.environ[name] for name in (variables.LOG_LEVEL, variables.STRICT) if name in os.environ},
        },
        "environment": environment,
        "folder": os.getcwd(),
        "command": " ".join(command),
        "run": os.urandom(3).hex(),
        "started": time.time(),
        "front_end": msgspec.to_builtins(FrontEnd(this_process(), this_machine())),
    }
    options = frontend.Options(
        prefix=arguments.network_prefix,
        port=arguments.port,
        join_timeout=arguments.join_timeout,
        claims=claims,
        settings=settings,
        idle=arguments.idle,
        resilient=arguments.resilient,
        exhaust=arguments.exhaust_resources,
    )
    head = frontend.Head(executable=command[0], arguments=command[1:], environment=environment, folder=os.getcwd())

    async def serve() -> int:
        return await frontend.FrontEnd(launcher, head, options).run()

    sys.stdout.flush()
    try:
        return uvloop.run(serve(), debug=False)
    except RuntimeError as error:
        if "new thread" not in str(error):
            raise
        raise LaunchError(f"the front end could not continue: {error}{what_to_raise(errno.EAGAIN)}") from error


def _transport(asked: str | None) -> str:
    """Return "tcp", "plain" or "ucx"; "" if the runtime is to choose."""
    if asked is None:
        return "tcp" if configuration.read().get("tcp_runtime") else ""
    return asked if asked in ("plain", "ucx") else "tcp"
