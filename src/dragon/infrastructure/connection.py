"""Connections under the name that programs know; see dragon.runtime.connection."""

from __future__ import annotations

from dragon.runtime.connection import Connection, ConnectionOptions, Pipe, PipeOptions

__all__ = ["Connection", "ConnectionOptions", "Pipe", "PipeOptions"]
