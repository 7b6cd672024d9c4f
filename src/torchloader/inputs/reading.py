"""Reads a workload in any of its formats."""

from __future__ import annotations

from pathlib import Path

from torchloader.inputs.jobs import read_jobs
from torchloader.inputs.mistakes import InputError, Mistake, Workload
from torchloader.inputs.workload import read_workload

_READERS = {".csv": read_workload, ".toml": read_jobs, ".yaml": read_jobs, ".yml": read_jobs}


def read(path: str | Path) -> Workload:
    """Read the jobs of a CSV, TOML or YAML file, by its suffix."""
    suffix = Path(path).suffix.lower()
    if not Path(path).exists():
        raise _no_workload(path, "no such file")
    if Path(path).is_dir():
        raise _no_workload(path, "a folder")
    if suffix not in _READERS:
        raise _no_workload(path, f"the ending {suffix!r}" if suffix else "no ending")
    return _READERS[suffix](path)


def _no_workload(path: str | Path, found: str) -> InputError:
    return InputError([Mistake(str(path), None, "", found, f"a file that ends in {', '.join(_READERS)}")])
