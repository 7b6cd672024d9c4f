"""Intel's driver, by its management library."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from dragon.agent.telemetry.gpu_driver import Reading, Untold, at, memory_readings
from dragon.agent.telemetry.level_zero import LevelZero
from dragon.infrastructure.gpus import Gpus, tiles_are_devices

__all__ = ["IntelDriver"]

Value = TypeVar("Value")
_Rows = tuple[tuple[str, ...], ...]

_INTEGRATED = 1  # ZES_DEVICE_PROPERTY_FLAG_INTEGRATED, which the bindings do not have


class _Family(NamedTuple):
    """Parts of a device: how they are listed, and what each of them is."""

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

# What tells a metric, the best first: of several in a row all are read, those of the next row where these do not tell.
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
    """Of a device, on one of its tiles or on none. `last` is its counter as it was read last, with the time."""

    handle: Any
    kind: int
    tile: int | None
    last: tuple[int, int] | None = None


@dataclass
class _Device:
    """A card, or one of its tiles; and the parts of the card, as they are asked for."""

    card: Any
    tile: int | None = None
    parts: dict[_Family, list[_Part]] = field(default_factory=dict)


class IntelDriver:
    """Level Zero Sysman as the bindings `module` have it.

    It knows all cards, whatever the environment makes of them for programs, so their numbers are counted here. A card
    whose parts are those of its tiles is the sum of these, or as hot, fast and busy as the one that is so most.
    """

    remedy = "pip install 'dragon-runtime[gpu]', and install Intel's Level Zero loader"
    errors: tuple[type[Exception], ...] = (Untold,)

    def __init__(self, module: str = "pyzes") -> None:
        self._module = module

    def open(self) -> None:
        """Load it, and put the cards in the order in which programs number them: that of their PCI addresses."""
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
            return (math.inf,)  # the library's own order, behind those that tell
        address = told.address
        return (address.domain, address.bus, address.device, address.function)

    def _tiles(self, card: Any) -> int | None:
        """How many it has, None where it is none that programs are given: an integrated one, or one that is lost."""
        try:
            told, more = self._library.filled(
                "zesDeviceGetProperties", card, "zes_device_properties_t", "zes_device_ext_properties_t"
            )
        except Untold:
            return None
        other = more.type not in (0, self._library.constant("ZES_DEVICE_TYPE_GPU"))
        return None if other or more.flags & _INTEGRATED else int(told.numSubdevices)

    def device(self, gpus: Gpus, place: int) -> _Device:
        """A tile by its card and number, or the card or the tile of a number, as the environment has it."""
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
        """Of all parts that tell it, together; None while one of them has yet to be read again."""
        values = self._read(device, family, rows, read)
        known = [value for value in values if value is not None]
        return together(known) if len(known) == len(values) else None

    def _read(self, device: _Device, family: _Family, rows: _Rows, read: Callable[[_Part], Value]) -> list[Value]:
        """From a tile; from a card by its own parts, or where only its tiles have such, from each of these."""
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
        """All of the card, looked for once. Raises Untold where none of them says what it is."""
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
        return _rate(part, told.energy, told.timestamp)  # of millionths of a joule in millionths of a second

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
        """Those that use it. Of a tile it is not known which of the card's processes do."""
        if device.tile is not None:
            raise Untold("the driver tells them of whole cards only")
        running = self._library.listed("zesDeviceProcessesGetState", "zes_process_state_t", device.card)
        return [(process.processId, process.memSize) for process in running]


def _split(card: Any, tiles: int) -> list[_Device]:
    """A card as its tiles; one that is not divided as itself."""
    return [_Device(card, tile) for tile in range(tiles)] if tiles > 1 else [_Device(card)]


def _best(rows: list[list[_Part]], read: Callable[[_Part], Value]) -> list[Value]:
    """What the parts of the first row that tells have to say. Raises Untold where none does."""
    failure = Untold("the driver shows this user nothing that would tell")
    for parts in rows:
        try:
            if parts:
                return [read(part) for part in parts]
        except Untold as error:
            failure = error
    raise failure


def _rate(part: _Part, count: int, time: int) -> float | None:
    """By how much a counter has risen in a unit of its time; None for the first time, or after a reset."""
    last, part.last = part.last, (count, time)
    if last is None or time <= last[1] or count < last[0]:
        return None
    return (count - last[0]) / (time - last[1])
