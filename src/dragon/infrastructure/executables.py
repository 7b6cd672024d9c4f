"""Explains why a file cannot be executed: the system's error number is often misleading."""

from __future__ import annotations

import errno
import os

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
