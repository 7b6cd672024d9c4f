"""`dragon program`: runs a program in a new run, and exits with its exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import stat
import sys
from collections.abc import Sequence

import dragon
from dragon.commands import Parser, end_with, explained, worded
from dragon.infrastructure import variables
from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.system import code_of_shells, what_to_raise, why_not_executed
from dragon.signals import name_of

__all__ = ["main"]

_LEVELS = ("NONE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LABELS = (
    ("--no-label", "", "print output unchanged (the default)"),
    ("--basic-label", "basic", "print the process's name before every line"),
    ("--verbose-label", "verbose", "print node, id, name and stream before every line"),
)
COMMANDS = ("ps", "kill", "doctor", "explain", "ddict", "top", "dashboard", "trace", "completion")
_ASKED_FOR = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
_EPILOG = """\
examples:
  dragon train.py --epochs 3        run a Python program
  dragon -m package.module          run a module
  dragon ./simulate input.dat       run any executable
  dragon --basic-label sweep.py     print the name of the process before every line of output
  dragon --nodes 4 sweep.py         rehearse on four simulated nodes; in an allocation: use four of its nodes
  dragon --hostlist a,b sweep.py    over two hosts, by ssh

other commands (a program of that name is run as ./NAME; each has --help):
  dragon run [options] PROG ...     the same as `dragon` alone
  dragon ps [RUN]                   list your runs on this machine, or the processes of one
  dragon doctor [RUN]               show what a run waits for: its agent and every process, with stacks
  dragon explain [TASK|PROCESS]     say why a task of a batch or a process waits, or how it failed
  dragon kill RUN                   end a run with all its processes
  dragon ddict ls|stat|dump|load    list, dump and load your runs' distributed dictionaries
  dragon plan [--json] PROG ...     run it, and print which process ran where
  dragon top [RUN]                  show a run in this terminal: nodes, GPUs, processes, queues, pools
  dragon dashboard [RUN]            serve a page that shows a run: what waits, what failed, charts, a timeline
  dragon dashboard DIR              make that page of a run that was recorded with --telemetry DIR
  dragon trace DIR                  make a trace of it for Perfetto
  dragon k8s manifest ...           print a Kubernetes job that runs a program
  dragon completion SHELL           print a script with which bash, zsh or tcsh complete this command

A program that imports dragon also runs with plain `python`; this command adds labels, logging and an exit code that
shows how the program ended (128 + the signal's number if it was killed).
"""


def options() -> argparse.ArgumentParser:
    from dragon.cli import machine  # not imported before, nor what runs a program: `dragon ps` and others need neither

    result = Parser(
        prog="dragon",
        description="Run a program with the Dragon runtime, on this machine or over several nodes.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    result.add_argument("--version", action="version", version=f"dragon {dragon.__version__}")
    machine.add_options(result)
    levels = f"what the runtime logs on stderr: {', '.join(_LEVELS)}, or stderr=LEVEL (default WARNING)"
    result.add_argument("-l", "--log-level", action="append", default=[], metavar="LEVEL", help=levels)
    labels = result.add_mutually_exclusive_group()
    for option, label, meaning in _LABELS:
        labels.add_argument(option, dest="label", action="store_const", const=label, default="", help=meaning)
    strict = "an affinity that this machine cannot meet is an error, not a warning"
    result.add_argument("--strict", action="store_true", help=strict)
    machine.add_telemetry(result)
    result.add_argument("-m", dest="module", metavar="MODULE", help="run a module, as `python -m` does")
    return result


def parser() -> argparse.ArgumentParser:
    result = options()
    program = "a Python program (- for standard input) or an executable"
    result.add_argument("program", nargs="?", metavar="PROG", help=program)
    result.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARG", help="its arguments")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code of the program."""
    words = list(sys.argv[1:] if argv is None else argv)
    code = _other_command(words)
    return _main(words) if code is None else code


def _main(words: list[str]) -> int:
    from dragon.cli import machine

    if words[:1] == ["run"]:
        del words[0]
    arguments = parser().parse_args(_split_module(words))
    if arguments.module is None and arguments.program is None:
        parser().error("no program given; `dragon -h` shows how, and `dragon -` reads it from standard input")
    level = _log_level(arguments.log_level)
    if level is not None:
        os.environ[variables.LOG_LEVEL] = level
    if arguments.strict:
        os.environ[variables.STRICT] = "1"
    if arguments.grace is not None:
        os.environ[variables.GRACE] = str(arguments.grace)
    try:
        machine.apply_telemetry(arguments)
    except ModuleNotFoundError as error:
        parser().error(str(error))
    rest = [word for word in arguments.arguments if word is not None]
    if arguments.module is not None:
        command = [*_python(), "-m", arguments.module, *([arguments.program] if arguments.program else []), *rest]
    else:
        command = _command(arguments.program, rest)
    machine.tell(machine.answers(arguments))
    if arguments.wlm == "k8s" and os.environ.get("JOB_COMPLETION_INDEX", "0") != "0":
        from dragon.cli import node

        # All pods run the same command; the first is the front end, and this pod is another one.
        os.environ.pop("DRAGON_FRONT_END", None)
        return node.main(["--join", "environment", "--index-from", "JOB_COMPLETION_INDEX"])
    try:
        return _run(command, arguments)
    except DragonError as error:
        return _cannot(error)
    except OSError as error:
        if error.filename != command[0] or error.errno is None:
            return _cannot(error)
        print(f"dragon: {command[0]}: {why_not_executed(command[0], error.errno)}", file=sys.stderr)
        return code_of_shells(error.errno)


def _other_command(words: list[str]) -> int | None:
    """Run a subcommand if `words` name one. Returns its exit code; None if they run a program."""

    def do(name: str, *arguments: object) -> int:
        return int(importlib.import_module(f"dragon.cli.{name}").main(*arguments))

    if words[:2] == ["node", "--join"]:
        return do("node", words[1:])
    if words in (["k8s"], ["k8s", "-h"], ["k8s", "--help"]):
        return do("k8s", ["--help"])
    if words[:2] == ["k8s", "manifest"]:
        return do("k8s", words[2:])
    if words[:1] == ["plan"]:
        return explained("dragon plan", lambda: do("plan", words[1:], main), DragonError)
    if words and words[0] in COMMANDS:
        return explained(f"dragon {words[0]}", lambda: do(words[0], words[1:]), DragonError, ModuleNotFoundError)
    return None


def _run(command: list[str], arguments: argparse.Namespace) -> int:
    from dragon.cli.machine import wanted
    from dragon.launcher.choice import choose

    try:
        launcher = choose(wanted(arguments))
    except (OSError, ValueError) as error:
        parser().error(worded(error))
    if launcher is None:
        from dragon.runtime.agent_start import start_agent

        start_agent()
    else:
        _check_for_other_nodes(command)
    from dragon.control_groups import MemoryKills

    memory_kills = MemoryKills()
    if launcher is None:
        from dragon.launcher import local

        code = local.run(command, arguments.label)
    else:
        from dragon.launcher import frontend

        code = frontend.run_program(launcher, command, arguments)
    if code >= 0:
        return code
    if -code not in _ASKED_FOR:
        # As a shell does for its own commands.
        reason = memory_kills.explain() if code == -signal.SIGKILL else ""
        print(
            f"dragon: {arguments.module or arguments.program} was ended by {name_of(-code)}"
            + (f", and {reason}" if reason else ""),
            file=sys.stderr,
        )
    return 128 - code


def _cannot(error: Exception) -> int:
    limit = what_to_raise(getattr(error, "errno", None) or 0)
    print(f"dragon: {worded(error).removesuffix(limit)}{limit}", file=sys.stderr)
    return 1


def _check_for_other_nodes(command: list[str]) -> None:
    """Raise DragonError if the command or the working directory cannot be sent to other nodes."""
    from dragon.launcher.choice import is_text

    try:
        folder = os.getcwd()
    except FileNotFoundError:
        raise DragonError("the working directory was removed; go to another one (cd)") from None
    for word in [*command, folder]:
        if not is_text(word):
            raise DragonError(f"{word!r} is not UTF-8, and cannot be sent to other nodes")


def _split_module(words: list[str]) -> list[str]:
    """Insert "--" after `-m MODULE`, so that everything after it, including options, belongs to the module."""
    if "-m" not in words:
        return words
    valued = {option for action in parser()._actions if action.nargs is None for option in action.option_strings}
    position = 0
    while position < len(words) and words[position].startswith("-"):
        if words[position] == "-m" and position + 1 < len(words):
            rest = words[position + 2 :]
            return [*words[: position + 2], *(["--"] if rest else []), *rest]
        position += 2 if words[position] in valued else 1
    return words


def _python() -> list[str]:
    """Return the interpreter that runs this command, with its options (`python -O -m dragon`)."""
    from dragon.runtime.interpreter import options_before_module

    return [sys.executable, *options_before_module()]


def _command(program: str, rest: list[str]) -> list[str]:
    import shutil

    if program == "-" or os.path.isfile(os.path.join(program, "__main__.py")):
        return [*_python(), program, *rest]
    if os.path.exists(program) and stat.S_ISFIFO(os.stat(program).st_mode):
        return [*_python(), "-c", *_read_here(program), *rest]
    found = program if os.path.isfile(program) else shutil.which(program)
    if found is None and os.path.isdir(program):
        parser().error(f"the folder {program!r} has no __main__.py that could be run")
    if found is None:
        import difflib

        close = difflib.get_close_matches(program, [*COMMANDS, "plan", "run", *os.listdir()], 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        parser().error(f"there is no command or file {program!r} here, and no such program in PATH{meant}")
    if found.endswith(".py") or not os.access(found, os.X_OK):
        return [*_python(), found, *rest]
    return [os.path.abspath(found), *rest]


# An argument may be 128 KiB long.
_PIECE = 32 * 1024
_RUN = (
    "import sys; _end = 3 + int(sys.argv[1]); _text = ''.join(sys.argv[3:_end]); sys.argv[:_end] = [sys.argv[2]]; "
    "_code = compile(_text, sys.argv[0], 'exec'); del sys, _end, _text; exec(_code)"
)


def _read_here(program: str) -> list[str]:
    """Return the program of a pipe (`dragon <(…)`), which other processes cannot read, as arguments for `python -c`."""
    with open(program, encoding="utf-8") as pipe:
        text = pipe.read()
    pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
    return [_RUN, str(len(pieces)), program, *pieces]


def _log_level(given: list[str]) -> str | None:
    chosen = None
    for text in given:
        target, _, level = text.rpartition("=")
        if level.upper() not in _LEVELS:
            parser().error(f"-l {text}: the levels are {', '.join(_LEVELS)}")
        if target in ("", "stderr"):
            chosen = "CRITICAL" if level.upper() == "NONE" else level.upper()
        else:
            print(f"dragon: -l {text}: there are no log files; the log goes to stderr", file=sys.stderr)
    return chosen


def run_and_exit() -> None:
    try:
        end_with("dragon", main)
    except SystemExit as ended:
        if not isinstance(ended.code, int) or "multiprocessing" not in sys.modules:
            raise
        from dragon import cpython

        cpython.end()
        cpython.flush_streams()
        os._exit(ended.code)  # the interpreter would take all modules apart, for as long as it took to import them
