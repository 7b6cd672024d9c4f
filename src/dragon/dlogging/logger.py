"""The base class of errors of groups and dictionaries."""

from dragon.infrastructure.errors import DragonLoggingError

__all__ = ["DragonLoggingError"]
