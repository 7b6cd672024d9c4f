"""Programs that use well-known packages over multiprocessing, each run as a script."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
LIMIT = 100.0
GRACE = 10.0

NEEDS = {
    "data_loader": ("torch",),
    "early_imports": (),
    "executor": (),
    "joblib_loky": ("joblib", "numpy"),
    "joblib_multiprocessing": ("joblib", "numpy"),
    "manager": (),
    "numpy_queue": ("numpy",),
    "progress": ("tqdm",),
    "scores": ("sklearn",),
    "shared_blocks": ("numpy",),
    "spawn_beside": (),
    "tensors": ("torch",),
}


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for the files of a program, with a name short enough for the sockets of a run."""
    with tempfile.TemporaryDirectory(prefix="d") as folder:
        yield Path(folder)


def processes_of(session: int) -> list[str]:
    """Return the command lines of the processes of a session."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            command = Path("/proc", entry, "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(f"{entry}: {command.replace(bytes(1), b' ').decode()}")
    return found


def await_end(session: int, folder: Path) -> list[str]:
    """Wait for the processes and files of a program to disappear; return those that remain."""
    deadline = time.monotonic() + GRACE
    while True:
        left = processes_of(session) + [str(path) for path in folder.iterdir()]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def run_program(path: Path, scratch: Path) -> str:
    """Run a script to its end; return its output. It must succeed, print nothing on stderr and leave nothing."""
    environment = {**os.environ, "TMPDIR": str(scratch)}
    environment.pop("XDG_RUNTIME_DIR", None)
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        program = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )
        try:
            code = program.wait(LIMIT)
        except subprocess.TimeoutExpired:
            program.send_signal(signal.SIGABRT)  # faulthandler then writes the stacks
            code = program.wait()
        left = await_end(program.pid, scratch)
        output.seek(0)
        errors.seek(0)
        text, complaints = output.read(), errors.read()
    assert code == 0, f"exit code {code}\n{text}{complaints}"
    assert complaints == ""
    assert left == []
    return text


@pytest.mark.timeout(LIMIT + 3 * GRACE)
@pytest.mark.parametrize("name", NEEDS)
def test_a_program_ends_without_errors_and_leaves_nothing(name: str, scratch: Path) -> None:
    missing = [package for package in NEEDS[name] if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    assert run_program(PROGRAMS / f"{name}.py", scratch) == "ok\n"


def test_every_program_is_listed() -> None:
    assert sorted(NEEDS) == sorted(path.stem for path in PROGRAMS.glob("*.py"))
