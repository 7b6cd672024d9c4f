"""How commands end: with their exit code, once all that they printed is written."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import NoReturn

__all__ = ["discard_stdout", "end_with", "worded"]


def worded(error: Exception) -> str:
    """What an error says. Those of the system are told by the file and what is wrong with it, without their number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def _of_stdout(error: OSError) -> str:
    if error.filename is not None:
        raise error
    return f"stdout cannot be written: {error.strerror}"


def end_with(name: str, command: Callable[[], int], tell: Callable[[OSError], str] = _of_stdout) -> NoReturn:
    """End this process with the code of `command`, which is called here; what cannot be printed is told in a line.

    `tell` words an error of the system, or raises it: by default one that is not of stdout.
    """
    code: int | str | None
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what the terminal cannot show is told, as on stderr
    try:
        code = _all_printed(command)
    except BrokenPipeError:
        # Who read it has seen enough, as of `dragon ps | head -1`.
        code = 128 + signal.SIGPIPE
        discard_stdout()
    except OSError as error:
        print(f"{name}: {tell(error)}", file=sys.stderr)
        code = 1
        discard_stdout()
    sys.exit(code)


def _all_printed(command: Callable[[], int]) -> int | str | None:
    code: int | str | None
    try:
        code = command()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as ended:  # of argparse, which may have printed its help
        code = ended.code
    print(end="", flush=True)
    return code


def discard_stdout() -> None:
    """Print to nowhere from now on. Python writes what is left once more when it ends, and would tell of that too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
