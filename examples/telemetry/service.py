"""Report the load of all nodes from the runtime's own telemetry, in place of a monitor on each node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import telem

from dragon.telemetry import AnalysisClient, Telemetry

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Event


def report(messages: Queue[telem.Message | None], end: Event, seconds: float) -> None:
    """Put the load of every node into a queue, at a fixed interval in seconds until the end."""
    service = Telemetry(telem_cfg={"collector_rate": seconds})
    service.start(3)
    while not end.wait(seconds):
        nodes: dict[str, dict[str, float]] = {}
        for record in AnalysisClient().get_data(["load_average", "DeviceUtilization"]):
            tags, values = record["tags"], list(record["dps"].values())
            nodes.setdefault(tags["host"], {})[tags.get("gpu", "")] = values[-1]
        for node, loads in sorted(nodes.items()):
            cpu = round(loads.pop("", 0.0), 2)
            messages.put(telem.Reading(node, cpu, {int(gpu): percent for gpu, percent in loads.items()}))
    service.shutdown()
