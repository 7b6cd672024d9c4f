"""Connections under dragonhpc's name; see dragon.runtime.connection. Listener and Client are multiprocessing's."""

from __future__ import annotations

from multiprocessing.connection import Client, Listener

from dragon.runtime.connection import Connection, ConnectionOptions, Pipe, PipeOptions

__all__ = ["Client", "Connection", "ConnectionOptions", "Listener", "Pipe", "PipeOptions"]
