"""Finds devices for waiting applications, and divides the speed of devices that several share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchloader.prediction.curve import Curve
from torchloader.scheduling.actions import Node
from torchloader.scheduling.application import Application, Placement, cores_of
from torchloader.scheduling.spreading import Away

__all__ = ["Devices", "shared"]


class Devices:
    """The free devices and cores of each node.

    Args:
        nodes: the nodes of the cluster.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._free = {name: sorted(node.devices) for name, node in nodes.items()}
        # Devices that were chosen by find() for an application, which must not share them.
        self._found: set[tuple[str, int]] = set()
        self.cores = {name: node.cores for name, node in nodes.items()}

    def take(self, application: Application, placement: Placement, workers: int, away: Away | None = None) -> None:
        """Take these devices, and cores for `workers` per device, some of which run on other nodes."""
        for name, cores in cores_of(placement, workers, away or {}).items():
            if name in self.cores:
                self.cores[name] -= cores
        for name, devices in placement.items():
            self._free[name] = [device for device in self._free[name] if device not in devices]
            if isinstance(application.spec.devices, int):
                self._found.update((name, device) for device in devices)

    def fits(self, placement: Placement, workers: int, away: Away | None = None) -> bool:
        """Return whether there are cores for `workers` per device, some of which run on other nodes."""
        needed = cores_of(placement, workers, away or {})
        return all(self.cores.get(name, 0) >= cores for name, cores in needed.items())

    def find(self, application: Application) -> dict[str, tuple[int, ...]] | None:
        """Return devices on which the application can run with its minimum of workers; None if there are none now."""
        spec = application.spec
        if not isinstance(spec.devices, int):
            named = {name: tuple(devices) for name, devices in spec.devices.items() if devices}
            for name, devices in named.items():
                if name not in self._nodes or not set(devices) <= set(self._nodes[name].devices):
                    return None
                if any((name, device) in self._found for device in devices):
                    return None
            return named if self.fits(named, spec.minimum) else None
        return self._find(spec.devices, spec.minimum)

    def _find(self, count: int, workers: int) -> dict[str, tuple[int, ...]] | None:
        room = {name: min(len(self._free[name]), self.cores[name] // workers) for name in self._nodes}
        # On one node if possible, on the one with the fewest free devices, so that others stay whole.
        whole = [name for name in room if room[name] >= count]
        if whole:
            name = min(whole, key=lambda name: (len(self._free[name]), -self.cores[name], name))
            return {name: tuple(self._free[name][:count])}
        placement = {}
        for name in sorted(room, key=lambda name: (-room[name], name)):
            taken = min(count, room[name])
            if taken > 0:
                placement[name] = tuple(self._free[name][:taken])
                count -= taken
        return placement if count == 0 else None


def shared(curves: Mapping[str, tuple[Curve, Placement]]) -> dict[str, Curve]:
    """Return the curves of applications that run at the same time, by name: a device computes for its users in turn."""
    users: dict[tuple[str, int], int] = {}
    for _, placement in curves.values():
        for node, devices in placement.items():
            for device in devices:
                users[node, device] = users.get((node, device), 0) + 1
    found = {}
    for name, (curve, placement) in curves.items():
        most = max(users[node, device] for node, devices in placement.items() for device in devices)
        found[name] = replace(curve, ceiling=curve.ceiling / most) if most > 1 else curve
    return found
