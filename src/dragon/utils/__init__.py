"""Small helpers for programs."""

from dragon.utils.base64_text import B64
from dragon.utils.time_keeper import TimeKeeper

__all__ = ["B64", "TimeKeeper"]
