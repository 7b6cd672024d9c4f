"""A function that programs of dragonhpc import from here."""

from __future__ import annotations

import socket


def get_port() -> int:
    """Return a TCP port of this machine that is free at the moment. Raises OSError if there is none."""
    with socket.create_server(("", 0)) as found:
        return int(found.getsockname()[1])
