"""`torchloader report`: writes a page and figures of runs."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from dragon.commands import Parser, worded
from dragon.files import write_bytes
from torchloader.report.figures import MissingError, comparison, overview
from torchloader.report.history import history
from torchloader.report.page import page
from torchloader.scheduling.log import LogError
from torchloader.service.settings import SettingsError


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = Parser(
        prog="torchloader report",
        description="Write a page and figures of a run: schedule, workers over time, throughput. With several "
        "folders, also a comparison of them. A run that has not ended is shown up to now.",
        epilog="torchloader report even/ proportional/ --out comparison",
        allow_abbrev=False,
    )
    result.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="the folder of a `torchloader run`, or of `simulate --out`"
    )
    result.add_argument("--out", metavar="DIR", help="where to write it (default: the first folder)")
    return result


def main(words: Sequence[str]) -> int:
    """Run the command. Returns the exit code, 1 if a run cannot be read."""
    arguments = parser().parse_args(list(words))
    out = Path(arguments.out or arguments.folders[0])
    try:
        runs = [history(Path(folder)) for folder in arguments.folders]
        out.mkdir(parents=True, exist_ok=True)
        write_bytes(out / "report.html", page(runs).encode())
        pictures = [
            (f"schedule-{number}.png" if len(runs) > 1 else "schedule.png", overview(run))
            for number, run in enumerate(runs, 1)
        ]
        if len(runs) > 1:
            pictures.append(("comparison.png", comparison(runs)))
        for name, figure in pictures:
            picture = io.BytesIO()
            figure.savefig(picture, format="png", dpi=150)
            write_bytes(out / name, picture.getvalue())
    except (OSError, LogError, SettingsError, MissingError) as error:
        print(f"torchloader: {worded(error)}", file=sys.stderr)
        return 1
    print("\n".join(str(out / name) for name in ["report.html", *(name for name, _ in pictures)]))
    return 0
