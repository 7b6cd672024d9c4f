"""`torchloader submit`: adds jobs to a running workload."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dragon.commands import Parser, worded
from dragon.infrastructure.errors import DragonError
from torchloader.cli.masters import add_run, printed, send
from torchloader.inputs.mistakes import InputError
from torchloader.inputs.reading import read
from torchloader.service.contact import NoMasterError
from torchloader.service.messages import SubmitJob


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = Parser(
        prog="torchloader submit",
        description="Submit the jobs of a file at once to the running workload; arrival times are ignored.",
        epilog="If the name of a job exists, a number is appended, such as resnet10-1-2, and the output says so. "
        "A workload ends with its last job, unless it was started with --hold.",
    )
    result.add_argument("jobs", metavar="FILE", help="a workload's CSV, or jobs in TOML or YAML")
    add_run(result)
    return result


def main(words: Sequence[str]) -> int:
    """Run the command. Returns the exit code: 1 if a job was rejected, 2 if the file cannot be read."""
    arguments = parser().parse_args(list(words))
    try:
        workload = read(arguments.jobs)
    except (InputError, OSError) as error:
        print(f"torchloader: {worded(error)}", file=sys.stderr)
        return 2
    for mistake in workload.errors:
        print(f"torchloader: {mistake.told}", file=sys.stderr)
    code = 1 if workload.errors else 0
    try:
        for job in workload.jobs:
            code = max(code, printed(send(arguments.run, SubmitJob(job))))
    except (NoMasterError, DragonError) as error:
        # That holds for all the others too.
        return printed({"error": str(error)})
    return code
