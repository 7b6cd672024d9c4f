"""The version of the runtime."""

from dragon import __version__

DRAGON_VERSION = __version__
"""The version of the package."""
