"""Connections under the name that programs know; see dragon.runtime.connection."""

from __future__ import annotations

from dragon.runtime.connection import Connection, Pipe

__all__ = ["Connection", "Pipe"]
