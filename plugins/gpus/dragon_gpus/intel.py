"""Intel's driver, through its management library, Level Zero."""

from __future__ import annotations

import ctypes
import importlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from dragon.agent.telemetry.gpu_source import Reading, Untold, at, memory_readings
from dragon.infrastructure.gpus import Gpus, tiles_are_devices

_LOADER = "libze_loader.so.1"
_ROOM = 16  # spare entries for processes that start after the call that returned their number


class LevelZero:
    """The library, through the bindings `module`: calls that raise exceptions, and structures that are filled. If a
    call fails, it raises Untold with the name of the result."""

    def __init__(self, module: str) -> None:
        self._bindings: Any = _load(module)
        self._results = {
            value: name for name, value in vars(self._bindings).items() if name.startswith("ZE_RESULT_ERROR_")
        }

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function. Raises Untold if it fails, or if this version of the library does not have it."""
        try:
            result = getattr(self._bindings, function)(*arguments)
        except AttributeError as error:
            raise Untold(str(error)) from error
        if result != 0:
            raise Untold(self._results.get(result, f"result {result:#x}"))

    def constant(self, name: str) -> int:
        """Return a constant of the bindings."""
        return int(getattr(self._bindings, name))

    def structure(self, kind: str) -> Any:
        """Return an empty structure, with its type set where the library needs that."""
        empty = getattr(self._bindings, kind)()
        if hasattr(empty, "stype"):
            empty.stype = self._type_of(kind)
        return empty

    def filled(self, function: str, handle: Any, kind: str, extension: str = "") -> tuple[Any, Any]:
        """Return the structure that a function fills for a handle, and its extension, None if not requested."""
        told, more = self.structure(kind), self.structure(extension) if extension else None
        if more is not None:
            told.pNext = ctypes.cast(ctypes.pointer(more), ctypes.c_void_p)
        self.call(function, handle, ctypes.byref(told))
        return told, more

    def listed(self, function: str, kind: str, *owner: Any) -> list[Any]:
        """Return all handles or structures of a kind, of the owner if one is given."""
        count = ctypes.c_uint32(0)
        self.call(function, *owner, ctypes.byref(count), None)
        if count.value == 0:
            return []
        array = (getattr(self._bindings, kind) * (count.value + _ROOM))()
        if hasattr(array[0], "stype"):
            for each in array:
                each.stype = self._type_of(kind)
        count.value = len(array)
        self.call(function, *owner, ctypes.byref(count), array)
        return list(array[: count.value])

    def _type_of(self, kind: str) -> int:
        """Return a structure's type: for zes_mem_state_t it is ZES_STRUCTURE_TYPE_MEM_STATE, and so on."""
        return self.constant(kind.removesuffix("_t").upper().replace("ZES_", "ZES_STRUCTURE_TYPE_", 1))


class _OnSearchPath(ctypes.CDLL):
    """A library; for Level Zero's loader, the one on the linker's search path."""

    def __init__(self, name: str, *arguments: Any, **options: Any) -> None:
        super().__init__(_LOADER if Path(name).name == _LOADER else name, *arguments, **options)


def _load(module: str) -> ModuleType:
    """Import the bindings, with the loader. The bindings load the loader when they are imported: up to version 0.1.3
    from the folder that only Debian and Ubuntu have (oneapi-src/level-zero#485). Without this function, they could not
    be imported on other systems, nor with the loader of a cluster's environment module."""
    usual = ctypes.CDLL
    ctypes.CDLL = _OnSearchPath  # type: ignore[misc, assignment]
    try:
        return importlib.import_module(module)
    except OSError as error:
        raise ImportError(str(error)) from error
    finally:
        ctypes.CDLL = usual  # type: ignore[misc]


Value = TypeVar("Value")
_Rows = tuple[tuple[str, ...], ...]

_INTEGRATED = 1  # ZES_DEVICE_PROPERTY_FLAG_INTEGRATED, which the bindings do not have


class _Family(NamedTuple):
    """One kind of part of a device: the functions that list and describe such parts."""

    listing: str
    handle: str
    describing: str
    properties: str
    extension: str = ""
    kind: str = "type"


_ENGINES = _Family(
    "zesDeviceEnumEngineGroups", "zes_engine_handle_t", "zesEngineGetProperties", "zes_engine_properties_t"
)
_MEMORIES = _Family(
    "zesDeviceEnumMemoryModules",
    "zes_mem_handle_t",
    "zesMemoryGetProperties",
    "zes_mem_properties_t",
    kind="location",
)
_POWER = _Family(
    "zesDeviceEnumPowerDomains",
    "zes_pwr_handle_t",
    "zesPowerGetProperties",
    "zes_power_properties_t",
    "zes_power_ext_properties_t",
    kind="domain",
)
_CLOCKS = _Family(
    "zesDeviceEnumFrequencyDomains", "zes_freq_handle_t", "zesFrequencyGetProperties", "zes_freq_properties_t"
)
_SENSORS = _Family(
    "zesDeviceEnumTemperatureSensors", "zes_temp_handle_t", "zesTemperatureGetProperties", "zes_temp_properties_t"
)

# The parts that have a metric, best first. All parts of a row are read; the next row only if these cannot be read.
_BUSY: _Rows = (
    ("ZES_ENGINE_GROUP_ALL",),
    ("ZES_ENGINE_GROUP_COMPUTE_ALL", "ZES_ENGINE_GROUP_RENDER_ALL"),
    ("ZES_ENGINE_GROUP_COMPUTE_SINGLE", "ZES_ENGINE_GROUP_RENDER_SINGLE"),
)
_ENERGY: _Rows = (
    ("ZES_POWER_DOMAIN_CARD",),
    ("ZES_POWER_DOMAIN_PACKAGE",),
    ("ZES_POWER_DOMAIN_STACK",),
    ("ZES_POWER_DOMAIN_UNKNOWN",),
)
_HEAT: _Rows = (("ZES_TEMP_SENSORS_GPU",), ("ZES_TEMP_SENSORS_GLOBAL",))
_OWN_MEMORY: _Rows = (("ZES_MEM_LOC_DEVICE",),)
_CLOCK: _Rows = (("ZES_FREQ_DOMAIN_GPU",),)
_MEMORY_CLOCK: _Rows = (("ZES_FREQ_DOMAIN_MEMORY",),)


@dataclass
class _Part:
    """A part of a device, on one of its tiles or on none. `last` is the last value of its counter, and its time."""

    handle: Any
    kind: int
    tile: int | None
    last: tuple[int, int] | None = None


@dataclass
class _Device:
    """A card or one of its tiles, and the parts of the card that were listed so far."""

    card: Any
    tile: int | None = None
    parts: dict[_Family, list[_Part]] = field(default_factory=dict)


class IntelDriver:
    """Level Zero Sysman, through the Python bindings `module`. The library lists all cards, whatever the environment
    shows to programs, so the cards are numbered here. If only the tiles of a card have parts of a kind, the card's
    value is their sum (power, memory) or their maximum (temperature, clock, utilization)."""

    remedy = "pip install 'dragon-runtime-gpus', and install Intel's Level Zero loader"
    errors: tuple[type[Exception], ...] = (Untold,)

    def __init__(self, module: str = "pyzes") -> None:
        self._module = module

    def open(self) -> None:
        """Load the library, and sort the cards as programs number them: by PCI address."""
        self._library = LevelZero(self._module)
        self._library.call("zesInit", 0)
        cards = []
        for driver in self._library.listed("zesDriverGet", "zes_driver_handle_t"):
            cards += self._library.listed("zesDeviceGet", "zes_device_handle_t", driver)
        cards.sort(key=self._address)
        self._cards = [(card, tiles) for card in cards if (tiles := self._tiles(card)) is not None]
        self.readings: dict[str, Reading] = {
            "DeviceUtilization": lambda device: self._told(device, _ENGINES, _BUSY, self._busy, max),
            **memory_readings(self._memory),
            "DevicePowerUsage": lambda device: self._told(device, _POWER, _ENERGY, self._watts, sum),
            "DeviceTemperature": lambda device: self._told(device, _SENSORS, _HEAT, self._celsius, max),
            "DeviceClock": lambda device: self._told(device, _CLOCKS, _CLOCK, self._megahertz, max),
            "DeviceMemoryClock": lambda device: self._told(device, _CLOCKS, _MEMORY_CLOCK, self._megahertz, max),
        }

    def _address(self, card: Any) -> tuple[float, ...]:
        try:
            told, _ = self._library.filled("zesDevicePciGetProperties", card, "zes_pci_properties_t")
        except Untold:
            return (math.inf,)  # the library's own order, after those that have an address
        address = told.address
        return (address.domain, address.bus, address.device, address.function)

    def _tiles(self, card: Any) -> int | None:
        """Return the number of tiles, or None if programs cannot use the card: integrated, or lost."""
        try:
            told, more = self._library.filled(
                "zesDeviceGetProperties", card, "zes_device_properties_t", "zes_device_ext_properties_t"
            )
        except Untold:
            return None
        other = more.type not in (0, self._library.constant("ZES_DEVICE_TYPE_GPU"))
        return None if other or more.flags & _INTEGRATED else int(told.numSubdevices)

    def device(self, gpus: Gpus, place: int) -> _Device:
        """Return a tile by card and number, or the card or tile of a number, depending on the environment."""
        number = gpus.numbers[place]
        if isinstance(number, float):
            card, _, tile = str(number).partition(".")
            return at(_split(*at(self._cards, int(card))), int(tile))
        if tiles_are_devices():
            return at([tile for card in self._cards for tile in _split(*card)], number)
        return _Device(at(self._cards, number)[0])

    def _told(
        self,
        device: _Device,
        family: _Family,
        rows: _Rows,
        read: Callable[[_Part], float | None],
        together: Callable[[Iterable[float]], float],
    ) -> float | None:
        """Combine the values of all parts that have one. None if one of them must be read once more."""
        values = self._read(device, family, rows, read)
        known = [value for value in values if value is not None]
        return together(known) if len(known) == len(values) else None

    def _read(self, device: _Device, family: _Family, rows: _Rows, read: Callable[[_Part], Value]) -> list[Value]:
        """Read a tile; or a card, from its own parts, or from those of each tile if only tiles have such."""
        kinds = [[self._library.constant(name) for name in row] for row in rows]
        parts = [part for part in self._parts(device, family) if any(part.kind in row for row in kinds)]
        tiles = {part.tile for part in parts}
        if device.tile is not None or None in tiles or not tiles:
            tiles = {device.tile}
        return [
            value
            for tile in tiles
            for value in _best(
                [[part for part in parts if part.tile == tile and part.kind in row] for row in kinds], read
            )
        ]

    def _parts(self, device: _Device, family: _Family) -> list[_Part]:
        """Return all parts of a kind, which are listed once. Raises Untold if none can be described."""
        if family not in device.parts:
            found, failure = [], None
            for handle in self._library.listed(family.listing, family.handle, device.card):
                try:
                    told, more = self._library.filled(family.describing, handle, family.properties, family.extension)
                except Untold as error:
                    failure = error
                    continue
                kind = getattr(told if more is None else more, family.kind)
                found.append(_Part(handle, kind, told.subdeviceId if told.onSubdevice else None))
            if failure is not None and not found:
                raise failure
            device.parts[family] = found
        return device.parts[family]

    def _busy(self, part: _Part) -> float | None:
        told, _ = self._library.filled("zesEngineGetActivity", part.handle, "zes_engine_stats_t")
        share = _rate(part, told.activeTime, told.timestamp)
        return None if share is None else min(100 * share, 100.0)

    def _watts(self, part: _Part) -> float | None:
        told, _ = self._library.filled("zesPowerGetEnergyCounter", part.handle, "zes_power_energy_counter_t")
        return _rate(part, told.energy, told.timestamp)  # microjoules per microsecond

    def _celsius(self, part: _Part) -> float:
        told = ctypes.c_double()
        self._library.call("zesTemperatureGetState", part.handle, ctypes.byref(told))
        return told.value

    def _megahertz(self, part: _Part) -> float:
        told, _ = self._library.filled("zesFrequencyGetState", part.handle, "zes_freq_state_t")
        if told.actual < 0:
            raise Untold("it has no value for that")
        return float(told.actual)

    def _memory(self, device: _Device) -> tuple[float, float]:
        states = self._read(device, _MEMORIES, _OWN_MEMORY, self._state)
        total = sum(state.size for state in states)
        if total == 0:
            raise Untold("it has no value for that")
        return total - sum(state.free for state in states), total

    def _state(self, part: _Part) -> Any:
        return self._library.filled("zesMemoryGetState", part.handle, "zes_mem_state_t")[0]

    def processes(self, device: _Device) -> list[tuple[int, int]]:
        """Return the processes that use the card. Which of them use a tile is not known."""
        if device.tile is not None:
            raise Untold("the driver tells them of whole cards only")
        running = self._library.listed("zesDeviceProcessesGetState", "zes_process_state_t", device.card)
        return [(process.processId, process.memSize) for process in running]


def _split(card: Any, tiles: int) -> list[_Device]:
    """Return a card's tiles; for a card that is not divided, the card."""
    return [_Device(card, tile) for tile in range(tiles)] if tiles > 1 else [_Device(card)]


def _best(rows: list[list[_Part]], read: Callable[[_Part], Value]) -> list[Value]:
    """Return the values of the first row of parts that can be read. Raises Untold if there is none."""
    failure = Untold("the driver shows this user nothing that would tell")
    for parts in rows:
        try:
            if parts:
                return [read(part) for part in parts]
        except Untold as error:
            failure = error
    raise failure


def _rate(part: _Part, count: int, time: int) -> float | None:
    """Return the increase of a counter per unit of its time; None at the first reading, or after a reset."""
    last, part.last = part.last, (count, time)
    if last is None or time <= last[1] or count < last[0]:
        return None
    return (count - last[0]) / (time - last[1])
