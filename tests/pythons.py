"""Run the tests that depend on the interpreter: python tests/pythons.py INTERPRETER [PART ...]

Makes a virtual environment with the package and the requirements of these tests, without PyTorch and Ray, and shows the
last line that pytest, or the part itself, prints for each part. docs/pythons.md has the results.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDED = ["pytest>=8,<9.2", "pytest-timeout>=2.3", "pytest-xdist>=3", "hypothesis>=6.100", "anyio>=4", "coverage>=7"]
NEEDED += ["numpy>=1.24"]
PARTS = ["infrastructure", "core", "runtime", "native", "mpbridge", "aio", "seeds"]
STANDARD = "stdlib"
NOT_PREPARED = 3  # the exit code if nothing was run


def prepare(interpreter: str, folder: Path) -> Path:
    """Create or update an environment with the package installed; return its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", folder], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, ROOT, *NEEDED], check=True)
    return python


def run(python: Path, part: str, workers: str) -> bool:
    """Run one part and print its last line; return whether all of it passed."""
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", workers, f"tests/{part}"]
    if part == STANDARD:
        command = [python, "tests/stdlib/run.py"]
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("w+", prefix=f"{part}-", suffix=".log", delete=False) as log:
        code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        log.seek(0)
        lines = log.read().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    print(f"{part}: {lines[-1].strip('= ') if lines else 'nothing'} [{time.monotonic() - began:.0f} s]", flush=True)
    print(*(f"  {line}" for line in failed), sep="\n", end="\n" if failed else "", flush=True)
    if code:
        print(f"  {log.name}", flush=True)
    else:
        os.unlink(log.name)
    return code == 0


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("interpreter", help="python3.14, or its path")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join([*PARTS, STANDARD])}; all unless given")
    parser.add_argument("-n", metavar="WORKERS", default="auto", help="tests at a time (default: auto)")
    parser.add_argument("--folder", type=Path, help="where its virtual environment is kept (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        try:
            python = prepare(options.interpreter, options.folder or Path(temporary, "venv"))
        except subprocess.CalledProcessError as error:
            print(f"the environment of {options.interpreter} cannot be made: {error}", file=sys.stderr)
            return NOT_PREPARED
        print(subprocess.run([python, "-VV"], capture_output=True, text=True, check=True).stdout.strip(), flush=True)
        passed = [run(python, part, options.n) for part in options.parts or [*PARTS, STANDARD]]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
