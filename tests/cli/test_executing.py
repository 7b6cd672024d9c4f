"""The file that is executed, and the error if that is not possible: the same on one node and on several."""

from __future__ import annotations

import sys

import pytest

from conftest import Site

_WAYS = ([], ["--nodes", "2"])


@pytest.mark.parametrize("options", _WAYS, ids=["one", "two"])
@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("echo hello\n", 126, "Exec format error: it is not a program, and has no first line (#!)"),
        ("#!/no/such/interpreter -x\necho\n", 127, "its interpreter, which the first line (#!) names, does not exist"),
        ("#!/bin/sh\r\necho hello\r\n", 127, "its first line ends with a carriage return (CRLF"),
    ],
    ids=["no shebang", "no interpreter", "CRLF"],
)
def test_the_error_about_a_script_that_cannot_be_executed_has_the_reason(
    site: Site, text: str, code: int, said: str, options: list[str]
) -> None:
    script = site.folder / "script"
    script.write_bytes(text.encode())
    script.chmod(0o755)
    done = site.dragon(*options, script)
    assert done.returncode == code
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"dragon: {script}: {said}")


def test_the_error_about_a_process_that_cannot_be_executed_has_the_reason(site: Site) -> None:
    script = site.folder / "script"
    script.write_bytes(b"#!/bin/sh\r\ntrue\r\n")
    script.chmod(0o755)
    done = site.python(f"""
        from dragon.native.process import Process, ProcessTemplate
        from dragon.native.process_group import ProcessGroup

        try:
            Process({str(script)!r}).start()
        except FileNotFoundError as error:
            print("carriage return" in str(error))
        group = ProcessGroup()
        group.add_process(1, ProcessTemplate({str(script)!r}))
        group.init()
        group.start()
        try:
            group.join()
        except Exception as error:
            print("carriage return" in str(error))
        group.close()
    """)
    assert done.stdout.split() == ["True", "True"], done.stderr


_PROGRAM = """
import multiprocessing as mp
import sys
import dragon

class Number:
    def __init__(self, value):
        self.value = value

def square(number):
    return Number(number.value**2)

if __name__ == "__main__":
    mp.set_start_method("dragon")
    with mp.Pool(2) as pool:
        print([number.value for number in pool.map(square, map(Number, range(4)))], *sys.argv[1:])
"""


@pytest.mark.parametrize(
    "command",
    [
        '"$PYTHON" /dev/stdin < program.py',
        '"$PYTHON" -m dragon /dev/stdin < program.py',
        '"$PYTHON" -m dragon --nodes 2 /dev/stdin < program.py',
        '"$PYTHON" <(cat program.py) a "b c"',
        '"$PYTHON" -m dragon <(cat program.py) a "b c"',
        '"$PYTHON" -m dragon --nodes 2 <(cat program.py) a "b c"',
        '"$PYTHON" -m dragon <(cat program.py; yes "# a long line of the program" | head -10000)',
    ],
)
def test_a_program_can_be_read_from_a_pipe(site: Site, command: str) -> None:
    site.write(_PROGRAM)
    done = site.run("bash", "-c", command, env={"PYTHON": sys.executable})
    assert done.stdout.splitlines() == ["[0, 1, 4, 9]" + (" a b c" if "b c" in command else "")], done.stderr
