"""The end of commands: they exit with their exit code once all their output is written."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import Any, NoReturn, TypeVar

__all__ = ["Parser", "at_least", "checked", "discard_stdout", "end_with", "explained", "need", "table", "worded"]

Value = TypeVar("Value")


class Parser(argparse.ArgumentParser):
    """A parser that keeps the lines of its description, and reports an error in a line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **options})

    def error(self, message: str) -> NoReturn:
        """Print the error, without the usage, and exit."""
        self.exit(2, f"{self.prog}: error: {message} (usage: {self.prog} --help)\n")


def checked(convert: Callable[[str], Value], fits: Callable[[Value], bool], expected: str) -> Callable[[str], Value]:
    """Return a converter of the text of an option, which argparse rejects unless its value `fits`."""

    def read(text: str) -> Value:
        try:
            value = convert(text)
            if fits(value):
                return value
        except ValueError:
            pass  # it is no number
        raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")

    return read


def at_least(least: int) -> Callable[[str], int]:
    """Return a converter for whole numbers of at least `least`."""
    return checked(int, lambda number: number >= least, f"a whole number of at least {least}")


def need(what: str, module: str, extra: str) -> None:
    """Raise ModuleNotFoundError, which says how to install what `what` needs, if that module is not there."""
    from importlib.util import find_spec  # which few commands need

    if find_spec(module.partition(".")[0]) is None or find_spec(module) is None:
        raise ModuleNotFoundError(f"{what} needs {module}: pip install 'dragon-runtime[{extra}]'")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of cells as columns; the last column is not padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join("  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in rows)


def worded(error: Exception) -> str:
    """Return the text of an error. For an OSError this is the file name and the reason, without the error number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def explained(name: str, command: Callable[[], int], *kinds: type[Exception]) -> int:
    """Return the exit code of a command: that which `command` returns, or 1 after an OSError or an error of these
    `kinds` was reported in a line."""
    caught: tuple[type[Exception], ...] = OSError, *kinds
    try:
        return command()
    except BrokenPipeError:
        raise
    except caught as error:
        print(f"{name}: {worded(error)}", file=sys.stderr)
        return 1


def _of_stdout(error: OSError) -> str:
    if error.filename is not None:
        raise error
    return f"stdout cannot be written: {error.strerror}"


def end_with(name: str, command: Callable[[], int], tell: Callable[[OSError], str] = _of_stdout) -> NoReturn:
    """Call `command` and end this process with the code that it returns. Output that cannot be written is reported in a
    line.

    `tell` returns the text for an OSError, or raises it: by default one that does not concern stdout.
    """
    code: int | str | None
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what the terminal cannot show, as on stderr
    try:
        code = _all_printed(command)
    except BrokenPipeError:
        # The reader has ended, for example of `dragon ps | head -1`.
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
    except SystemExit as ended:  # raised by argparse, which may have printed its help
        code = ended.code
    print(end="", flush=True)
    return code


def discard_stdout() -> None:
    """Discard all further output to stdout. Python flushes it once more at its end, and would report an error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
