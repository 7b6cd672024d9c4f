"""What programs import from here by name."""

from __future__ import annotations

import socket

__all__ = ["get_port"]


def get_port() -> int:
    """A TCP port of this machine at which nothing listens now. Raises OSError where there is none."""
    with socket.socket() as found:
        found.bind(("", 0))
        port: int = found.getsockname()[1]
    return port
