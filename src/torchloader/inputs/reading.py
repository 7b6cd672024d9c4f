"""A workload in whichever form it was written."""

from __future__ import annotations

from pathlib import Path

from torchloader.inputs.jobs import read_jobs
from torchloader.inputs.mistakes import InputError, Mistake, Workload
from torchloader.inputs.workload import read_workload

__all__ = ["read"]

_READERS = {".csv": read_workload, ".toml": read_jobs, ".yaml": read_jobs, ".yml": read_jobs}


def read(path: str | Path) -> Workload:
    """The jobs of a CSV, TOML or YAML file, by its ending. Raises InputError for another ending, and OSError."""
    suffix = Path(path).suffix.lower()
    if suffix not in _READERS:
        raise InputError([Mistake(str(path), None, "", f"the ending {suffix!r}", f"one of {', '.join(_READERS)}")])
    return _READERS[suffix](path)
