"""What kind of process this is."""

from __future__ import annotations

__all__ = ["is_worker"]

is_worker = False  # a loading worker sets it before it imports the modules of its dataset
