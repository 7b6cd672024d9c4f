"""Run whole programs with the standard library's fork and with Dragon, and report the differences of their ends.

python tests/differential/run_whole.py --programs 500 --seed 1
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from differential.ways import OURS
from differential.whole_programs import WholeProgram, drawn

__all__ = ["difference", "result"]

PATIENCE = 40


def result(program: WholeProgram, command: list[str], method: str, folder: Path) -> str:
    """Return what a program printed (sorted), its exit code, and the last line of its traceback, if any."""
    text = program.text(method)
    path = folder / "program.py"
    path.write_text(text)
    given = {"-c": ["-c", text], "stdin": ["-"]}.get(program.form, [str(path)])
    with path.open() as source:
        running = subprocess.Popen(
            [sys.executable, *command, *given],
            stdin=source if program.form == "stdin" else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, "XDG_RUNTIME_DIR": str(folder), "PYTHONWARNINGS": "ignore"},
            text=True,
            start_new_session=True,
        )
        try:
            out, err = running.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
            return "hangs"
    code = running.returncode if running.returncode >= 0 else 128 - running.returncode
    complaint = err.strip().splitlines()[-1:]
    return f"{sorted(out.splitlines())} {code} {complaint if program.end in ('raise', 'exit text') else bool(err)}"


def difference(program: WholeProgram, folder: Path, ways: list[str]) -> list[str]:
    """Return the results of Dragon that differ from those of fork."""
    found = []
    expected = result(program, [], "fork", folder)
    for way in ways:
        command = OURS[way]
        if command and program.form in ("-c", "stdin"):
            command = [*command, sys.executable]  # the command takes a file, not source text
        ours = result(program, command, "dragon", folder)
        if expected not in (ours, "hangs"):
            found.append(f"{way}: {ours}\n    fork: {expected}\n    {program}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=500, help="how many are drawn (default: 500)")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing (default: 0)")
    arguments = parser.parse_args()
    differences = 0
    for program in drawn(arguments.programs, arguments.seed):
        with tempfile.TemporaryDirectory() as folder:
            for found in difference(program, Path(folder), list(OURS)):
                differences += 1
                print(found, flush=True)
    print(f"{arguments.programs} programs, {differences} differences")
    return bool(differences)


if __name__ == "__main__":
    raise SystemExit(main())
