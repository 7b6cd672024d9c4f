"""`torchloader fit`: fits a prior for networks that have not run yet to the measurements of finished runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dragon.commands import Parser
from torchloader.cli.main import failed
from torchloader.service.settings import Settings


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="torchloader fit",
        description="Fit a prior to the networks that were measured in finished runs: seconds of an iteration by "
        "parameters and operations, and what loading takes.",
        epilog="torchloader run MORE.csv --prior prior.json uses it as the initial estimate. It is valid for the same "
        "kind of device and data.",
        allow_abbrev=False,
    )
    result.add_argument("folders", nargs="+", metavar="FOLDER", help="the folder of a `torchloader run`")
    result.add_argument("--out", default="prior.json", metavar="FILE", help="where to write it (default prior.json)")
    return result


def main(words: Sequence[str]) -> int:
    """Run the command. Returns the exit code, 1 if the runs do not suffice."""
    arguments = parser().parse_args(list(words))
    try:
        from torchloader.training.priors import fitted

        folders = map(Path, arguments.folders)
        prior = fitted([(Settings.log(folder), Settings.load(folder).image_size) for folder in folders])
        prior.save(arguments.out)
    except ValueError as error:
        return failed(error)
    print(
        f"{arguments.out}: fitted to {prior.rows} measurements; on networks left out of the fit it is off by "
        f"{prior.error:.0%} on average"
    )
    return 0
