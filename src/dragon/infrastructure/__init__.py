"""Plain data that every floor shares: policies, node descriptions, messages, parameters, errors."""

from dragon.infrastructure.signals import hold_signals, release_signals

# An interrupt that comes while msgspec is imported is lost, and later a decoder that it makes crashes (0.22).
_held = hold_signals()
try:
    import msgspec  # noqa: F401
finally:
    release_signals(_held)
