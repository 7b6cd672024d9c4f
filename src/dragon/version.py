"""The version of the runtime."""

from dragon import __version__

__all__ = ["DRAGON_VERSION"]

DRAGON_VERSION = __version__
"""The version of the package."""
