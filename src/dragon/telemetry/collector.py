"""Not offered: the agents measure their nodes themselves. The name is here for an error that says what to use."""

from __future__ import annotations

from typing import Any

from dragon.infrastructure.errors import NotSupportedError

__all__ = ["Collector"]


class Collector:
    """Not offered."""

    def __init__(self, telemetry_config: Any = None) -> None:
        raise NotSupportedError(
            "telemetry.collector.Collector is not offered: every node's agent measures it, from --telemetry-level 2 or "
            "Telemetry().start(2) on; add_data() adds metrics of a program's own"
        )
