"""The GPUs that a job may use: those of the machine that the environment does not hide."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

# The variables that select devices for each vendor's libraries. The first is used if none is set; of several that are
# set the last one counts, because it selects among the devices that the others leave.
GPU_VARIABLES = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "intel": ("ZE_AFFINITY_MASK",),
}
# Slurm's allocation, for sites where it sets no mask. The step's has precedence over the job's.
_SLURM_VARIABLES = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


class Gpus(NamedTuple):
    """Devices by number; a tile of an Intel device is a fraction, 0.1 being the second tile of the first device.
    `variable` selects the devices of a process, and `names` are the devices' names in it if these are not the
    numbers."""

    vendor: str = ""
    numbers: list[int | float] = []
    names: list[str] = []
    variable: str = ""


def find_gpus(environment: Mapping[str, str] = os.environ) -> Gpus:
    """Return the GPUs of this machine that `environment` leaves visible."""
    for vendor, find in (("nvidia", _nvidia), ("amd", _amd), ("intel", _intel)):
        devices = find()
        if devices:
            return _visible(vendor, devices, environment)
    return Gpus()


def tiles_are_devices() -> bool:
    """Return whether each tile of an Intel card counts as a device in this environment."""
    return os.environ.get("ZE_FLAT_DEVICE_HIERARCHY", "FLAT").upper() != "COMPOSITE"


def _visible(vendor: str, devices: list[str], environment: Mapping[str, str]) -> Gpus:
    variables = GPU_VARIABLES[vendor]
    variable = next((name for name in reversed(variables) if name in environment), variables[0])
    mask = environment.get(variable)
    if mask is None:
        return Gpus(vendor, _given_by_slurm(environment, len(devices)), [], variable)
    parts = [part.strip() for part in mask.split(",")]
    if vendor == "intel":
        return Gpus(vendor, _tiles(parts, len(devices)), [], variable)
    if parts[0].isdigit():
        return Gpus(vendor, _numbers(parts, len(devices)), [], variable)
    return Gpus(vendor, *_by_name(parts, devices), variable)


def _given_by_slurm(environment: Mapping[str, str], count: int) -> list[int | float]:
    """Return the devices in Slurm's variables, such as 0-1,3; all visible ones if these are unset or do not fit."""
    text = next((environment[name] for name in _SLURM_VARIABLES if name in environment), "")
    found: list[int | float] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found += range(int(first), int(last or first) + 1)
    if not found:
        return [*range(count)]
    # Slurm uses the machine's numbers; if the control group hides other devices, the visible ones count from 0.
    return found if max(found) < count else [*range(min(count, len(found)))]


def _numbers(parts: list[str], count: int) -> list[int | float]:
    """Return device numbers up to the first invalid one: the vendors' libraries ignore what follows it."""
    found: list[int | float] = []
    for part in parts:
        if not part.isdigit() or int(part) >= count:
            break
        found.append(int(part))
    return found


def _tiles(parts: list[str], count: int) -> list[int | float]:
    found: list[int | float] = []
    for part in parts:
        device, dot, tile = part.partition(".")
        if device.isdigit() and int(device) < count and (tile.isdigit() if dot else True):
            found.append(float(part) if dot else int(part))
    return found


def _by_name(parts: list[str], devices: list[str]) -> tuple[list[int | float], list[str]]:
    """Return the devices in a mask of unique names, which may be shortened."""
    names = []
    for part in parts:
        if not part.upper().startswith(("GPU-", "MIG-")):
            break
        names.append(part)
    numbers: list[int | float] = []
    for name in names:
        matching = [i for i, device in enumerate(devices) if device.upper().startswith(name.upper())]
        if len(matching) != 1:
            return [*range(len(names))], names
        numbers.append(matching[0])
    return numbers, names


# Each of these returns the unique names of one vendor's devices, "" for a device without one.


def _nvidia() -> list[str]:
    names = []
    for folder in sorted(glob.glob("/proc/driver/nvidia/gpus/*")):
        try:
            lines = (Path(folder) / "information").read_text().splitlines()
        except OSError:
            lines = []
        known = dict(line.split(":", 1) for line in lines if ":" in line)
        names.append(known.get("GPU UUID", "").strip())
    return names or [""] * len(glob.glob("/dev/nvidia[0-9]*"))


def _amd() -> list[str]:
    names = []
    nodes = glob.glob("/sys/class/kfd/kfd/topology/nodes/[0-9]*")
    for node in sorted(nodes, key=lambda node: int(os.path.basename(node))):
        try:
            known = dict(line.split() for line in (Path(node) / "properties").read_text().splitlines())
        except OSError:  # a device outside this job's control group
            continue
        if int(known.get("simd_count", "0")) > 0:
            names.append(f"GPU-{int(known.get('unique_id', '0')):016x}")
    return names


def _intel() -> list[str]:
    names = []
    for path in sorted(glob.glob("/sys/class/drm/card*/device")):
        device = Path(path)
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        # 0x0380: a display controller without a screen, which is what the data-centre devices are.
        if vendor == "0x8086" and kind.startswith("0x0380"):
            names += [""] * _shown_as(device)
    return names


def _shown_as(device: Path) -> int:
    """Return the number of devices of an Intel card: its tiles, or one if the environment asks for whole cards."""
    if not tiles_are_devices():
        return 1
    tiles = len(list(device.glob("tile[0-9]*"))) or len(list(device.parent.glob("gt/gt[0-9]*")))
    return max(1, tiles)
