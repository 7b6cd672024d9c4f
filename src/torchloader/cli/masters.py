"""The commands for a running master: pause, resume, resize, cancel, stop, submit; and how each finds its master."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from dragon.commands import Parser
from dragon.infrastructure.errors import DragonError
from dragon.runs import choose, find
from torchloader.cli.main import failed
from torchloader.inputs.job import InputError
from torchloader.inputs.workload import read
from torchloader.service import messages

# The message, the description, and what is below the options in the help.
_COMMANDS: dict[str, tuple[type[messages.Command], str, str]] = {
    "pause": (messages.PauseApplication, "Save a checkpoint of an application and stop it, until it is resumed.", ""),
    "resume": (messages.ResumeApplication, "Continue an application that was paused.", ""),
    "cancel": (messages.CancelApplication, "End an application.", ""),
    "resize": (
        messages.ResizeApplication,
        "Change the number of loading workers of a running application, without stopping it.",
        "The scheduler may change it again at its next decision, but not in a run with --mode 1.",
    ),
    "stop": (messages.StopWhenDone, "Have a workload that was started with --hold end after its last job.", ""),
    "submit": (
        messages.SubmitJob,
        "Submit the jobs of a file at once to the running workload; arrival times are ignored.",
        "If the name of a job exists, a number is appended, such as resnet10-1-2, and the output says so. A workload "
        "ends with its last job, unless it was started with --hold.",
    ),
}
_FIELDS: dict[str, dict[str, Any]] = {  # of the messages
    "job": {"metavar": "FILE", "help": "a workload's CSV, or jobs in TOML or YAML"},
    "application": {"metavar": "NAME", "help": "as `torchloader status` lists it"},
    "workers": {"type": int, "metavar": "N", "help": "loading workers per device"},
}


def parser(name: str) -> argparse.ArgumentParser:
    message, description, epilog = _COMMANDS[name]
    result = Parser(prog=f"torchloader {name}", description=description, epilog=epilog or None)
    for field in message.__struct_fields__:
        result.add_argument(field, **_FIELDS[field])
    add_run(result)
    return result


def main(name: str, words: Sequence[str]) -> int:
    """Run a command. Returns the exit code: 1 if it was rejected, 2 if a file cannot be read."""
    arguments = parser(name).parse_args(list(words))
    if name == "submit":
        return _submit(arguments.job, arguments.run)
    message = _COMMANDS[name][0]
    return _printed(send(arguments.run, message(*(vars(arguments)[field] for field in message.__struct_fields__))))


def _submit(jobs: str, run: str | None) -> int:
    try:
        workload = read(jobs)
    except (InputError, OSError) as error:
        return failed(error, 2)
    for mistake in workload.errors:
        print(f"torchloader: {mistake.message}", file=sys.stderr)
    code = 1 if workload.errors else 0
    for job in workload.jobs:  # without a master, none of them is sent
        code = max(code, _printed(send(run, messages.SubmitJob(job))))
    return code


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", metavar="RUN", help="select a run if there are several (`dragon ps` lists them)")


def send(word: str | None, command: messages.Command) -> dict[str, Any]:
    """Return the master's reply. Raises messages.NoMasterError if there is no master, or several and `word` is None."""
    runs = find()
    try:
        meant = [choose(word, runs)] if word else runs
    except DragonError as error:
        raise messages.NoMasterError(str(error)) from None
    found = messages.contacts(node.folder for run in meant for node in run.nodes)
    if not found:
        raise messages.NoMasterError("no workload runs on this machine; `torchloader run WORKLOAD` starts one")
    if len(found) > 1:
        names = ", ".join(contact.folder for contact in found.values())
        raise messages.NoMasterError(
            f"several workloads run ({names}); say which with --run RUN (`dragon ps` lists them)"
        )
    (folder, contact), *_ = found.items()
    return messages.request(folder, contact, command)


def _printed(reply: dict[str, Any]) -> int:
    """Print a reply of the master. Returns the exit code."""
    if "error" in reply:
        return failed(str(reply["error"]))
    print(reply["message"])
    return 0
