"""Selects what an agent sends large payloads over: TCP, or a fabric that was requested or is faster."""

from __future__ import annotations

import os
from pathlib import Path

from dragon.agent.wire.bulk import Fabric
from dragon.agent.wire.ucx import Ucx
from dragon.infrastructure.errors import DragonError
from dragon.runtime.log import runtime_log

__all__ = ["FabricError", "active_devices", "open_fabric"]

log = runtime_log("fabric")

_DEVICES = Path("/sys/class/infiniband")


class FabricError(DragonError):
    """A node does not have the fabric that the run is to use."""


def active_devices(folder: Path = _DEVICES) -> list[str]:
    """The names of this machine's RDMA devices that have a port in use."""
    ports = sorted(folder.glob("*/ports/*/state"))
    return list(dict.fromkeys(port.parts[-4] for port in ports if "ACTIVE" in port.read_text()))


def open_fabric(transport: str, host_name: str, folder: Path = _DEVICES) -> Fabric | None:
    """Return UCX for "ucx", and for "" if there are an RDMA device and ucxx; else None. Raises FabricError."""
    if transport in ("tcp", "plain"):
        return None
    devices = active_devices(folder)
    if devices:
        # A UCX that was installed with the drivers supports the devices; the one in the wheel may not.
        os.environ.setdefault("RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY", "true")
    if transport == "ucx":
        return _wanted(host_name)
    return _for_devices(devices, host_name) if devices else None


def _wanted(host_name: str) -> Fabric:
    try:
        return Ucx()
    except ImportError as error:
        fix = "pip install 'dragon-runtime[rdma]'"
        raise FabricError(f"{host_name}: --transport ucx needs ucxx ({error}); there: {fix}") from error
    except Exception as error:
        raise FabricError(f"{host_name}: --transport ucx: UCX cannot be used: {error}") from error


def _for_devices(devices: list[str], host_name: str) -> Fabric | None:
    found = f"{host_name} has {', '.join(devices)}"
    try:
        # UCX was not requested, so it must not send payloads over an ordinary network instead of the links.
        fabric = Ucx({} if "UCX_TLS" in os.environ else {"TLS": "^tcp"})
    except ModuleNotFoundError:
        return None
    except Exception as error:
        log.warning("%s, but UCX cannot be used (%s); large payloads go over TCP", found, error)
        return None
    if fabric.reaches(devices):
        return fabric
    fabric.close()
    log.warning("%s, but the UCX there has no transport for them; large payloads go over TCP", found)
    return None
