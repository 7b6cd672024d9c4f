"""`torchloader report`: writes a page and figures of runs."""

from __future__ import annotations

import argparse
import html
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragon.commands import Parser, worded
from dragon.files import write_bytes
from torchloader.report import History, MissingError, comparison, history, overview
from torchloader.scheduling.log import LogError
from torchloader.service.settings import SettingsError

_STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68em; margin: 2em auto; padding: 0 1em; color: #1a202c }
table { border-collapse: collapse; margin: 1em 0 } th, td { padding: .25em .9em; border-bottom: 1px solid #e2e8f0 }
td { text-align: right; font-variant-numeric: tabular-nums } td:first-child, td:last-child, th { text-align: left }
svg { max-width: 100%; height: auto } pre { white-space: pre-wrap; margin: 0; font-size: 12px }
"""


def page(runs: Sequence[History]) -> str:
    """Return the report as HTML. Raises MissingError without matplotlib."""
    parts = ["<h1>torchloader</h1>"]
    if len(runs) > 1:
        parts += [_svg(comparison(runs)), _summaries(runs)]
    for run in runs:
        parts += [f"<h2>{html.escape(run.name)}</h2>", _svg(overview(run)), _lives(run)]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>torchloader</title><style>{_STYLE}</style>'
    return head + "\n".join(parts) + "</html>\n"


def _svg(figure: Any) -> str:
    from matplotlib import pyplot

    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]


def _summaries(runs: Sequence[History]) -> str:
    rows = []
    for run in runs:
        told = run.summary
        rows.append(
            (
                run.name,
                f"{told.jobs}",
                f"{told.failed}",
                f"{told.throughput:.1f}",
                _percent(told.busy),
                f"{told.completion:.1f}",
                f"{told.makespan:.1f}",
                f"{told.resizes}",
            )
        )
    return _table(("run", "jobs", "failed", "samples/s", "computing", "mean time, s", "makespan, s", "resizes"), rows)


def _lives(run: History) -> str:
    rows = [
        (
            life.name,
            f"{life.arrival:.1f}",
            f"{life.seconds:.1f}",
            f"{life.iterations:.0f}",
            f"{life.throughput:.1f}",
            _percent(life.busy),
            f"{life.spans[-1].state}: {life.spans[-1].reason}",
        )
        for life in run.lives.values()
    ]
    return _table(("application", "arrival, s", "time, s", "iterations", "samples/s", "computing", "end"), rows)


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{fraction:.0%}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{html.escape(each)}</th>" for each in head) + "</tr>"]
    for row in rows:
        cells = "".join(f"<td>{_cell(each)}</td>" for each in row)
        lines.append(f"<tr>{cells}</tr>")
    return "\n".join([*lines, "</table>"])


def _cell(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>" if "\n" in text else html.escape(text)


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
