"""The files with the output of tasks, and their manifest."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

from dragon.native.process import ProcessTemplate
from dragon.runtime.arguments import DEVNULL, PIPE, STDOUT
from dragon.runtime.nodes import own_node
from dragon.workflows.batch.call import Output, Streams

_numbers = itertools.count(1)
_MANIFEST = "manifest.jsonl"


class Logs:
    """A folder with a file for each stream of each task, by rank for jobs, and a manifest with a line for each task."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = folder / _MANIFEST

    @classmethod
    def make(cls, place: str | os.PathLike[str] | bool) -> Logs:
        """Create the folder, by default in the working directory. Raises OSError if it cannot be created."""
        if isinstance(place, bool):
            place = f"dragon_batch_{own_node().host_name}_{os.getpid()}_{next(_numbers)}"
        folder = Path(place).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        logs = cls(folder)
        logs.manifest.touch()
        return logs

    def streams(self, uid: str, of_job: bool) -> tuple[str, str]:
        """Return the files of a task's stdout and stderr."""
        base = self.folder / (f"{uid}.{{rank}}" if of_job else uid)
        return f"{base}.out", f"{base}.err"

    def note(self, uid: str, name: str, kind: str, output: Output) -> None:
        """Add a task to the manifest. Several processes may do so at the same time."""
        record = {"tuid": uid, "name": name, "task_kind": kind, "stdout": output.stdout, "stderr": output.stderr}
        with open(self.manifest, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """Return the records of the manifest: tuid, name, task_kind, and the paths of stdout and stderr by rank."""
        return [json.loads(line) for line in self.manifest.read_text(encoding="utf-8").splitlines()]


def read_files(paths: list[str]) -> bytes:
    """Return the concatenated content of the files; missing ones are empty."""
    found = []
    for path in paths:
        try:
            found.append(Path(path).read_bytes())
        except FileNotFoundError:
            continue
    return b"".join(found)


def checked_stream(name: str, value: Any) -> int | str | None:
    """Return a user's stream in normalized form. Raises ValueError for an invalid one."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value == PIPE and not isinstance(value, str):
        raise ValueError(
            f"{name}=PIPE: the pipe could not be read; name a file, or keep all output with task_logs=True"
        )
    if value is None or value == DEVNULL or (value == STDOUT and name == "stderr"):
        return value  # type: ignore[no-any-return]
    if isinstance(value, str) and value:
        return os.path.abspath(value)
    raise ValueError(f"{name} must be a file, DEVNULL or None, not {value!r}")


def output_of(streams: Streams, templates: list[ProcessTemplate] | None) -> Output:
    """Return the files of a task's output. `templates` are those of its ranks, None for a function."""
    files: list[list[str]] = []
    for name, stream in zip(("stdout", "stderr"), streams, strict=True):
        own = [getattr(template, name) for template in templates] if templates else [None]
        chosen = [stream if value in (None, PIPE) else value for value in own]
        named = [str(one).replace("{rank}", str(rank)) for rank, one in enumerate(chosen) if isinstance(one, str)]
        files.append(list(dict.fromkeys(named)))
    return Output(streams, *files)
