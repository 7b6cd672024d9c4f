"""Shows a sweep over numbers of loading workers, in a terminal or as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchloader.prediction.curve import Curve, sufficient
from torchloader.report.figures import pyplot

_WIDTH = 40  # characters of the longest bar
_BLOCKS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement with a number of workers per device.

    Attributes:
        workers: workers per device.
        samples: samples per second and device.
        waiting: the fraction of time that the device waited for data.
        seconds: the length of the measurement.
    """

    workers: int
    samples: float
    waiting: float
    seconds: float


def chosen(points: Sequence[Point]) -> int:
    """Return the smallest measured number of workers that suffices: none was faster by more than noise."""
    return sufficient({each.workers: each.samples for each in points})


def drawn(points: Sequence[Point], curve: Curve, encoding: str = "utf-8") -> str:
    """Return a table with a bar for each rate, and a mark at the chosen number. `encoding` is that of the output."""
    most, found = max(each.samples for each in points), chosen(points)
    lines = ["  ".join(cell.rjust(9) for cell in ("workers", "samples/s", "waiting", "fitted"))]
    for each in points:
        fitted = f"{curve.throughput(each.workers):.1f}"
        cells = (str(each.workers), f"{each.samples:.1f}", f"{each.waiting:.0%}", fitted)
        row = "  ".join(cell.rjust(9) for cell in cells)
        mark = "  <- enough" if each.workers == found else ""
        lines.append(f"{row}  {_bar(each.samples / most if most else 0.0, encoding)}{mark}")
    return "\n".join(lines)


def told(points: Sequence[Point], curve: Curve) -> str:
    """Return the result as one line."""
    found = chosen(points)
    enough = curve.enough(found)
    line = (
        f"a device computes {curve.ceiling:.1f} samples/s; a sample takes {curve.service * 1e3:.2f} ms of a worker and "
        f"{curve.shared * 1e3:.2f} ms of what they share; {found} worker{'s are' if found != 1 else ' is'} enough"
    )
    return f"{line}, and by the fitted curve {enough}" if enough < found else line


def picture(points: Sequence[Point], curve: Curve) -> Any:
    """Draw the rates against the workers, with the fitted curve and the chosen number. Raises MissingError."""
    figure, axis = pyplot().subplots(figsize=(7, 4.2), layout="constrained")
    most, found = max(each.workers for each in points), chosen(points)
    numbers = [1 + (most - 1) * step / 200 for step in range(201)]
    axis.plot(numbers, [curve.throughput(number) for number in numbers], color="#2b6cb0", label="fitted curve")
    tried, rates = [each.workers for each in points], [each.samples for each in points]
    axis.plot(tried, rates, "o", color="#5aa469", label="measured")
    axis.axvline(found, color="#c53030", linestyle="--", linewidth=1, label=f"enough: {found}")
    axis.set_xlabel("loading workers per device")
    axis.set_ylabel("samples/s per device")
    axis.set_ylim(bottom=0)
    axis.set_xticks(tried)
    axis.legend(loc="lower right")
    return figure


def _bar(part: float, encoding: str) -> str:
    eighths = round(8 * _WIDTH * part)
    try:
        _BLOCKS.encode(encoding)
    except UnicodeEncodeError:
        return "#" * round(eighths / 8)
    return "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()
