"""A placeholder for dragonhpc's Collector, which raises an error that names the alternative."""

from __future__ import annotations

from typing import Any

from dragon.infrastructure.errors import NotSupportedError

__all__ = ["Collector"]


class Collector:
    """Not supported: its construction raises NotSupportedError. The agents measure their nodes themselves."""

    def __init__(self, telemetry_config: Any = None) -> None:
        raise NotSupportedError(
            "telemetry.collector.Collector is not offered: every node's agent measures it, from --telemetry-level 2 or "
            "Telemetry().start(2) on; add_data() adds metrics of a program's own"
        )
