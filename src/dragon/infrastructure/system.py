"""The system: errors and what to do about them, texts, limits of open files, why an executable cannot be run."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterable

from dragon.infrastructure.errors import RunEndedError

_GIVEN = resource.getrlimit(resource.RLIMIT_NOFILE)


def allow_many_files() -> None:
    """Raise the limit of this process to the hard limit: most shells set 1,024."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_GIVEN[1], _GIVEN[1]))


def give_back_limit(pid: int) -> None:
    """Set the limit of a child to the one with which this process was started."""
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, _GIVEN)
    except ProcessLookupError:
        return  # the child has ended


def check_files(needed: int, what: str) -> None:
    """Raise RunEndedError if `what` needs more open files than the hard limit of this process."""
    if 0 <= _GIVEN[1] < needed:
        raise RunEndedError(
            f"{what} needs {needed} open files, and the hard limit is {_GIVEN[1]}: raise it (ulimit -Hn)"
        )


_FIRST_LINE = 256  # bytes of the first line that the kernel reads


def why_not_executed(path: str, number: int) -> str:
    """Return why that file cannot be executed, from the error number of execve()."""
    try:
        with open(path, "rb") as file:
            beginning = file.read(_FIRST_LINE)
    except OSError:
        return os.strerror(number)
    if beginning.startswith(b"#!"):
        return _of_script(beginning[2:].partition(b"\n")[0], number)
    if number == errno.ENOENT:
        return "its dynamic loader does not exist here: the program was built for another system"
    if number == errno.ENOEXEC and not beginning.startswith(b"\x7fELF"):
        return f"{os.strerror(number)}: it is not a program, and has no first line (#!) that names its interpreter"
    return os.strerror(number)


def _of_script(line: bytes, number: int) -> str:
    interpreter = os.fsdecode((line.split() or [b""])[0])
    if number not in (errno.ENOENT, errno.ENOTDIR):
        return f"{os.strerror(number)} (of its interpreter {interpreter!r}, or of the file)"
    if line.endswith(b"\r"):
        return f"its first line ends with a carriage return (CRLF, as on Windows): #!{os.fsdecode(line)!r}"
    return f"its interpreter, which the first line (#!) names, does not exist: {interpreter!r}"


def code_of_shells(number: int) -> int:
    """Return the exit code of shells for an executable that was not found (127), or cannot be executed (126)."""
    return 127 if number in (errno.ENOENT, errno.ENOTDIR) else 126


_STANDS_FOR_BYTES = "\0"  # precedes text with one character for each byte; cannot occur in any text of the system


def sendable(text: str) -> str:
    """Return the text, in an encoded form if it is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _STANDS_FOR_BYTES + os.fsencode(text).decode("latin-1")
    return text


def all_sendable(texts: Iterable[str]) -> list[str]:
    """Return sendable() of each text."""
    listed = list(texts)
    return listed if "".join(listed).isascii() else list(map(sendable, listed))


def restored(text: str) -> str:
    """Return the text that was passed to sendable()."""
    return os.fsdecode(text[1:].encode("latin-1")) if text.startswith(_STANDS_FOR_BYTES) else text


def readable(text: str) -> str:
    """Return the text with escapes for what is not UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def what_to_raise(number: int) -> str:
    """Return text to append to a system error: which limit to raise, or "" if it is not about a limit."""
    if number == errno.EAGAIN:
        return ": raise the limit of processes (ulimit -u, or the container's)"
    if number == errno.EMFILE:
        return ": raise the limit of open files (ulimit -n)"
    return ""


def is_of_handler(error: BaseException) -> bool:
    """Return whether a signal handler of the program raised a caught error, such as an alarm's TimeoutError, and not a
    call of this package."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in ("dragon", "socket"):
            return True
        trace = trace.tb_next
    return False


def may_pass(number: int) -> bool:
    """Return whether a process whose start failed with that error may be started later, when other processes have
    ended."""
    return number in (errno.EAGAIN, errno.ENOMEM)
